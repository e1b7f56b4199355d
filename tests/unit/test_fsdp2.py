"""Engine fsdp2: figures worked out from torch's source. tests/integration/test_fsdp2_bytes.py runs the real one."""

import planner
from planner.parsing import parse_training_case
from planner.tape.autograd import Tape
from planner.training import TrainingRun

LLAMA = planner.model_config("tinyllama_1_1b")  # 22 blocks, 4 key-value heads of 32, 32000 words
BLOCK = 2 * 2048 * 2048 + 2 * 256 * 2048 + 3 * 5632 * 2048 + 2 * 2048
ROOT = 2 * 32000 * 2048 + 2048
MODEL = 22 * BLOCK + ROOT
FSDP = {
    "hf_config": LLAMA,
    "method": "full",
    "seq_len": 256,
    "gradient_checkpointing": True,
    "engine": "fsdp2",
    "optimizer": "torch_adamw",
    "world_size": 4,
}
MIB = 1 << 20


def near(nbytes, expected, slack=16 * MIB):
    return abs(nbytes - expected) <= slack


def exact(case, **changes):
    """A run whose allocator rounds to 64 bytes, not to blocks."""
    return TrainingRun(parse_training_case({**case, "gpu": "cpu", **changes}))


def forecast(case, **changes):
    return planner.predict({**case, **changes})


def test_fsdp2_cuts_weights_gradients_and_state_by_the_ranks():
    played = forecast(FSDP)
    assert near(played.phases["load"], MODEL * 2 // 4 + ROOT * 2), "the root is cut last"
    assert near(played.phases["engine start"], MODEL * 2 // 4)
    assert near(played.components["weights"], MODEL * 2 // 4)
    assert near(played.components["optimizer states"], 2 * MODEL * 2 // 4)


def test_fsdp2_pads_each_parameter_to_the_same_rows_on_every_rank():
    run = exact(FSDP, world_size=3)
    run.engine.load()
    rows = {32000: 10667, 2048: 683, 256: 86, 5632: 1878}
    padded = 22 * (2 * 683 * 2048 + 2 * 86 * 2048 + 2 * 1878 * 2048 + 683 * 5632 + 2 * 683)
    padded += 2 * 10667 * 2048 + 683
    assert all(-(-whole // 3) == part for whole, part in rows.items())
    assert near(run.arena.allocator.allocated, 2 * padded, slack=512 * 210)
    assert padded * 3 > MODEL


def test_fsdp2_holds_two_blocks_in_backward():
    """The one whose turn it is, cut into parameters, and the flat copy of the one before it."""
    run = exact(FSDP)
    engine, arena = run.engine, run.arena
    engine.load()
    at_rest = arena.allocator.allocated
    engine.begin_micro_batch()
    assert near(arena.allocator.allocated - at_rest, 2 * ROOT * 2), "the root's flat copy and its parameters"
    tape = Tape(arena, engine, run.workspaces)
    seen = []

    def body(x):
        seen.append(arena.allocator.allocated)
        return tape.attach(tape.tensor(1, 2), lambda gradient: [seen.append(arena.allocator.allocated)], [x])

    x = tape.attach(tape.tensor(1, 2), lambda _: [], [])
    for layer in run.network.layers:
        x = engine.around(tape, layer, x, body)
    assert all(near(one - at_rest, ROOT * 2 + 2 * BLOCK * 2) for one in seen), (
        "root, one block, its flat copy"
    )
    seen.clear()
    engine.blocks.end_forward()
    assert near(arena.allocator.allocated - at_rest, (ROOT + BLOCK) * 2), "the last block is asked for"
    tape.backward(x, arena.new(2, "loss"))
    assert near(seen[0] - at_rest, (ROOT + 2 * BLOCK) * 2)
    assert len(seen) == 1, "the stub's gradient ends here"


def test_fsdp2_keeps_the_gradients_of_the_root_whole_until_backward_is_over():
    gradients = forecast(FSDP, seq_len=32).components["gradients"]
    assert gradients >= 2 * 32000 * 2048 * 2, "output layer and embedding"


def test_fsdp2_in_mixed_precision_keeps_shards_gradients_and_state_in_fp32():
    half, wide = (forecast(FSDP, fsdp={"fp32_params": wide}).components for wide in (False, True))
    assert near(wide["weights"], 2 * half["weights"])
    assert near(wide["optimizer states"], 2 * half["optimizer states"])
    run = exact(FSDP, fsdp={"fp32_params": True})
    run.engine.load()
    before = run.arena.allocator.allocated
    run.engine.begin_micro_batch()
    assert near(run.arena.allocator.allocated - before, 2 * ROOT * 2), "gathered in 16 bit"
    reduced = forecast(FSDP, fsdp={"fp32_params": True, "reduce_dtype": "fp32"}).components
    assert near(reduced["communication buckets"], ROOT * 4), (
        "the root is reduced last, with all its gradients"
    )


def test_fsdp2_without_resharding_holds_the_whole_model():
    kept = forecast(FSDP, fsdp={"reshard_after_forward": False})
    assert kept.phases["forward 1"] >= MODEL * 2 * 5 // 4


def test_fsdp2_under_no_sync_keeps_whole_gradients():
    waiting = forecast(FSDP, grad_accum=2, fsdp={"sync_each_batch": False})
    assert waiting.components["gradients"] >= MODEL * 2
    assert forecast(FSDP, grad_accum=2).components["gradients"] < MODEL * 2


def test_fsdp2_steps_one_tensor_at_a_time_unless_told_otherwise():
    steps = {each: forecast(FSDP, fsdp={"foreach": each}).phases["step 2"] for each in (False, True)}
    largest = 32000 * 2048 * 2 // 4
    assert near(steps[True] - steps[False], MODEL * 2 // 4 - 2 * largest), "root and quotient of one tensor"


def test_fsdp2_of_one_rank_gathers_nothing():
    run = exact(FSDP, world_size=1)
    run.engine.load()
    before = run.arena.allocator.allocated
    run.engine.begin_micro_batch()
    assert near(run.arena.allocator.allocated - before, ROOT * 2)
