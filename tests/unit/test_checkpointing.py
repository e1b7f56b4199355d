"""What autograd and checkpoints keep: inputs, outputs, tied gradients, workspaces. Sizes summed by hand."""

from types import SimpleNamespace

import pytest
from tiny_cases import HIDDEN, LORA, TABLE, TOKENS, Recorder, case_of, play

from planner.memory.arena import Arena
from planner.network.checkpoint import checkpointed
from planner.network.modules import Layer, Module
from planner.tape import ops, products
from planner.tape.autograd import Parameter, Tape
from planner.tape.kernels import Workspaces
from planner.training import TrainingRun
from planner.training_case import Checkpointing

X = 1000  # elements of an activation; two bytes each
WIDE = {"gradient_checkpointing": True}


class Sink:
    """Takes gradients of parameters."""

    def __init__(self):
        self.taken = {}

    def on_gradient(self, parameter, gradient):
        """Keep it."""
        self.taken[parameter.name] = gradient


def tape_of(*, workspace=0, **options):
    """A tape over a recording arena, and where its gradients go."""
    arena, sink = Recorder(), Sink()
    return Tape(arena, sink, Workspaces(arena, workspace), **options), arena, sink


def run_backward(tape, out):
    """Give `out` a gradient and run the tape."""
    gradient = tape.arena.new(out.nbytes, "activation gradients")
    tape.backward(out, gradient)


@pytest.mark.parametrize(("transposes", "made"), [(True, 3), (False, 2)], ids=["F.linear", "in place"])
def test_two_gradients_of_a_tied_weight(transposes, made):
    """The output layer's gradient of `F.linear` is a transposed view: the sum is a third tensor."""
    tape, arena, sink = tape_of(transposes=transposes)
    weight = Parameter("embed", (50, 8), trainable=True, itemsize=2)
    hidden = ops.embedding(tape, weight, 10)
    logits = products.linear(tape, hidden, weight, rows=10)
    run_backward(tape, logits)
    assert arena.asked("gradients") == [800] * made
    assert list(sink.taken) == ["embed"]


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ({"zero_stage": 2}, 3),
        ({"zero_stage": 3, "zero": {"reduce_bucket_size": TABLE}}, 2),
        ({"zero_stage": 3, "zero": {"memory_efficient_linear": False, "reduce_bucket_size": TABLE}}, 3),
        ({"zero_stage": 2, "liger": True}, 2),
    ],
    ids=["stage 2", "DeepSpeed's function", "F.linear at stage 3", "Liger's loss"],
)
def test_which_code_adds_tied_gradients_in_place(change, made):
    odd = {"tie_word_embeddings": True, "vocab_size": 257}
    run = play(case_of(config=odd, **change))
    assert run.arena.asked("gradients").count(2 * 257 * HIDDEN) == made


def test_a_workspace_comes_with_the_first_product_after_its_output_and_stays():
    tape, arena, _ = tape_of(workspace=64)
    weight = Parameter("w", (5, 5), trainable=True, itemsize=2)
    x = ops.embedding(tape, Parameter("e", (9, 5), trainable=True, itemsize=2), 4)
    assert not arena.asked("cuBLAS workspace")
    out = products.linear(tape, products.linear(tape, x, weight, rows=4), weight, rows=4)
    assert [what for what, _ in arena.requests][:3] == ["activations", "activations", "cuBLAS workspace"]
    assert arena.asked("cuBLAS workspace") == [64]
    run_backward(tape, out)
    assert arena.asked("cuBLAS workspace") == [64, 64]  # autograd runs in a thread of its own


def test_a_recomputed_forward_pass_uses_the_workspace_of_backward():
    tape, arena, _ = tape_of(workspace=64, recomputes=True)
    tape.multiplies()
    tape.multiplies(backward=True)
    assert arena.asked("cuBLAS workspace") == [64]


@pytest.mark.parametrize("stage", [2, 3])
def test_the_embedding_output_stays_with_the_graph_where_nothing_trained_leads_to_it(stage):
    """`enable_input_require_grads` makes it a leaf: it and its gradient live as long as the graph."""
    each = TOKENS * HIDDEN * 2
    run = TrainingRun(case_of(**LORA, **WIDE, zero_stage=stage))
    run.play(steps=1)
    assert [buffer.nbytes for buffer in run.graph] == [each, each]


@pytest.mark.parametrize("change", [LORA, {**WIDE}], ids=["no checkpoints", "trained embedding"])
def test_otherwise_nothing_stays(change):
    run = TrainingRun(case_of(**change, zero_stage=2))
    run.play(steps=1)
    assert run.graph == []


def test_eight_bit_products_keep_their_inputs_with_the_graph():
    """Seven products a block; those whose input needs a gradient keep it, checkpoints or not."""
    quantization = {"bits": 8, "double_quant": False, "prepare_for_kbit_training": False}
    base = {"method": "qlora", "quantization": quantization, "zero_stage": 2}
    lora = {"r": 4, "target_modules": "all-linear"}
    plain = TrainingRun(case_of(**base, lora=lora))
    plain.play(steps=1)
    kept = TrainingRun(case_of(**base, lora=lora, **WIDE))
    kept.play(steps=1)
    inputs = 2 * 7
    first = 3  # q, k and v of the first block: their input is the frozen embedding's
    assert len(plain.graph) == inputs - first
    assert len(kept.graph) == inputs + 2  # and the embedding's output with its gradient


def test_four_bit_products_keep_nothing():
    base = {"method": "qlora", "quantization": {"bits": 4}, "lora": {"r": 4}, "zero_stage": 2}
    run = TrainingRun(case_of(**base))
    run.play(steps=1)
    assert run.graph == []


class Blocks:
    """Two trained blocks of two activation functions each, checkpointed in one way."""

    def __init__(self, how):
        self.tape, self.arena, _ = tape_of()
        self.forward = SimpleNamespace(
            tape=self.tape,
            case=SimpleNamespace(checkpointing=how),
            hooks=SimpleNamespace(shards_weights=False, keeps_inputs=False),
            kept_inputs=[],
            graph=[],
            adapters=True,
        )
        weight = Parameter("w", (1, 1), trainable=True, itemsize=2)
        self.layer = Layer({"w": Module("w", weight)}, {}, ("w",))
        self.held = []

    def block(self, _layer, x):
        """Run with the forward pass's tape of the moment."""
        tape = self.forward.tape
        return ops.activation(tape, ops.activation(tape, x))

    def run_forward(self):
        """Both blocks; gives back the output."""
        x = self.tape.tensor(X, 2)
        self.tape.attach(x, lambda _: [], [])
        for _ in range(2):
            x = checkpointed(self.forward, self.layer, x, self.block)
        return x


def forward_end(how):
    blocks = Blocks(how)
    out = blocks.run_forward()
    assert out.needs_grad
    return blocks.arena.allocator.allocated


def test_a_checkpoint_keeps_the_input_of_each_block():
    assert forward_end(Checkpointing()) == 3 * 2 * X  # two inputs and the output


def test_on_the_cpu_only_the_last_input_stays_on_the_gpu():
    assert forward_end(Checkpointing("deepspeed", cpu=True)) == 2 * 2 * X


def backward_peak(how):
    blocks = Blocks(how)
    out = blocks.run_forward()
    blocks.arena.forget_peak()
    run_backward(blocks.tape, out)
    return blocks.arena.peak_bytes


@pytest.mark.parametrize("kind", ["reentrant", "deepspeed"])
def test_what_reenters_holds_the_recomputed_output(kind):
    assert backward_peak(Checkpointing(kind)) - backward_peak(Checkpointing()) == 2 * X


def test_an_input_from_the_cpu_comes_back_for_its_block():
    away = Blocks(Checkpointing("deepspeed", cpu=True))
    out = away.run_forward()
    asked = len(away.arena.requests)
    run_backward(away.tape, out)
    again = [request for request in away.arena.requests[asked:] if request == ("activations", 2 * X)]
    assert len(again) == 2 * 2 + 1  # both blocks run again, and one input is fetched


def test_a_tape_is_left_as_it_was():
    blocks = Blocks(Checkpointing())
    run_backward(blocks.tape, blocks.run_forward())
    assert blocks.forward.tape is blocks.tape
    assert isinstance(blocks.arena, Arena)
    assert blocks.arena.allocator.allocated == 0


def test_what_needs_nothing_kept_is_not_made_again_and_its_gradient_comes_first():
    """Two activation functions and a factor: the first is made again, the second only needs its input."""
    blocks = Blocks(Checkpointing())
    blocks.block = lambda _layer, x: ops.scale(
        blocks.forward.tape,
        ops.activation(blocks.forward.tape, ops.activation(blocks.forward.tape, x)),
    )
    out = blocks.run_forward()
    asked = len(blocks.arena.requests)
    run_backward(blocks.tape, out)
    what = [name for name, nbytes in blocks.arena.requests[asked + 1 :] if nbytes]
    assert what == ["activation gradients", "activations", *["activation gradients"] * 2] * 2


@pytest.mark.parametrize(("flattens", "made"), [(True, 3), (False, 2)], ids=["F.linear", "DeepSpeed's"])
def test_gradients_that_are_views_meet_in_a_third_tensor(flattens, made):
    tape, arena, _ = tape_of()
    x = ops.embedding(tape, Parameter("e", (9, 5), trainable=True, itemsize=2), 4)
    left, right = (
        products.linear(
            tape,
            x,
            Parameter(name, (7, 5), trainable=False, itemsize=2),
            rows=4,
            keeps_input=not flattens,
        )
        for name in ("left", "right")
    )
    run_backward(tape, ops.add(tape, left, right))
    assert arena.asked("activation gradients").count(4 * 5 * 2) == made
