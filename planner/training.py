"""Plays a training job through on sizes: load, engine start, a few optimizer steps.

The second step differs from the first: optimizer state exists and ZeRO-3 prefetches. What is allocated
then repeats, but fragments of cached memory still grow in the third.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.deepspeed.base import Engine
from planner.deepspeed.bf16 import Bf16Stage1
from planner.deepspeed.stage0 import Stage0
from planner.deepspeed.stage3 import Stage3
from planner.deepspeed.stage3_packed import PackedStage3
from planner.deepspeed.stage12 import Stage12
from planner.fsdp2 import Fsdp2
from planner.liger import fuses_loss
from planner.memory.allocator import CachingAllocator, PlainAllocator
from planner.memory.arena import Arena, Buffer
from planner.memory.replay import gpu_allocator
from planner.network.build import build_network
from planner.network.loss import LITGPT, TRL, loss_of
from planner.network.modules import Network
from planner.network.perceptron import Perceptron, input_sizes, perceptron_loss
from planner.network.run import ForwardPass
from planner.plain_loop import PlainLoop
from planner.tables import CPU, card_of, workspace_bytes
from planner.tape.autograd import Tape, Tensor
from planner.tape.kernels import Workspaces
from planner.training_case import TrainingCase

STEPS_FOR_PEAK = 2
STEPS_FOR_FRAGMENTS = 3
DISTINCT_MICRO_BATCHES = 2  # the first one, and one that meets accumulated gradients
TOKEN_BYTES = 8  # int64 ids


def make_engine(case: TrainingCase, network: Network, arena: Arena) -> Engine:
    """The emulated engine: DeepSpeed's optimizer of the case's stage, or what stands in its place."""
    if case.engine != "deepspeed":
        return (Fsdp2 if case.engine == "fsdp2" else PlainLoop)(case, network, arena)
    if case.zero_stage == 1 and case.dtype == "bf16" and case.grad_accum_dtype == "fp32":
        return Bf16Stage1(case, network, arena)
    sharded = Stage3 if case.quantization is None else PackedStage3
    makers = {0: Stage0, 1: Stage12, 2: Stage12, 3: sharded}
    return makers[case.zero_stage](case, network, arena)


def _allocator(case: TrainingCase) -> CachingAllocator:
    if case.device == CPU:
        return PlainAllocator()
    return gpu_allocator(expandable_segments=case.expandable_segments)


class TrainingRun:
    """One emulated rank 0 over its start and its first optimizer steps."""

    def __init__(self, case: TrainingCase, arena: Arena | None = None, *, label: str = "") -> None:
        self.case, self.label = case, label
        self.arena = Arena(_allocator(case)) if arena is None else arena
        self.network = build_network(case)
        self.engine = make_engine(case, self.network, self.arena)
        self.workspaces = Workspaces(self.arena, workspace_bytes(case.device), card_of(case.device))
        self.start_peak_bytes = 0
        self.graph: list[Buffer] = []
        self.earlier_logits: list[Buffer] = []
        self.before_backward: Callable[[], object] | None = None

    def play(self, *, steps: int | None = None) -> Arena:
        """Run everything; the arena then holds events, phases and the peak of the steps."""
        if steps is None:  # what a CPU frees leaves no fragments that matter
            steps = STEPS_FOR_PEAK if self.case.device == CPU else STEPS_FOR_FRAGMENTS
        arena = self.arena
        self.set_up()
        self.start_peak_bytes = max(p.peak_bytes for p in arena.phases)
        arena.forget_peak()
        for step in range(steps):
            self.optimize(step)
        return arena

    def set_up(self) -> None:
        """Load the weights and start the engine."""
        self.engine.load()
        self.arena.end_phase(f"{self.label}load")
        self.engine.start()
        self.arena.end_phase(f"{self.label}engine start")

    def optimize(self, step: int) -> None:
        """The micro-batches of one optimizer step, and the step."""
        micro_batches = min(self.case.grad_accum, DISTINCT_MICRO_BATCHES)
        for micro in range(micro_batches):
            self.micro_batch(step, boundary=micro == micro_batches - 1)
        self.engine.step()
        self.arena.end_phase(f"{self.label}step {step + 1}")

    def micro_batch(self, step: int, *, boundary: bool) -> None:
        """One forward and backward pass; `boundary` at the last of a step."""
        arena, case = self.arena, self.case
        if case.loss != LITGPT:
            self.graph = []  # the graph of the last micro-batch goes with the last name for its loss
        ids = [arena.new(nbytes, "inputs") for nbytes in self._input_sizes()]
        self.engine.begin_micro_batch()
        # Only the gradient that autograd makes for F.linear is a transposed view.
        views = not (self.engine.keeps_inputs or fuses_loss(case))
        tape = Tape(arena, self.engine, self.workspaces, transposes=views)
        loss, kept = self._forward(tape)
        if self.engine.blocks is not None:
            self.engine.blocks.end_forward()
        beside = None if self.before_backward is None else self.before_backward()
        if case.loss == TRL:  # trl's names for the logits end with its loss function
            kept.clear()
        arena.end_phase(f"{self.label}forward {step + 1}")
        gradient = arena.new(4, "loss")
        tape.backward(loss, gradient)
        arena.end_phase(f"{self.label}backward {step + 1}")
        self.engine.end_backward(boundary=boundary)
        del loss, kept, gradient, ids, beside
        arena.end_phase(f"{self.label}reduce {step + 1}")

    def _input_sizes(self) -> tuple[int, int]:
        """Ids and labels, or pixels and labels."""
        ids_bytes = self.case.tokens * TOKEN_BYTES
        return input_sizes(self.case) if self.case.architecture.widths else (ids_bytes, ids_bytes)

    def _forward(self, tape: Tape) -> tuple[Tensor, list[Tensor]]:
        if isinstance(self.network, Perceptron):
            return perceptron_loss(self.case, self.network, tape, self.engine), []
        forward = ForwardPass(self.case, self.network, tape, self.engine)
        forward.earlier_logits = self.earlier_logits
        loss, kept = loss_of(forward, forward.hidden_states())
        self.graph = forward.graph
        return forward.ended(loss), kept
