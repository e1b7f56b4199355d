"""What one micro-batch of a model needs beside weights: found by playing one and two blocks through.

Everything the play allocates is linear in the number of blocks, so two depths give all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.deepspeed.base import ReplicatedWeights
from planner.grid.polynomial import BATCH, LENGTH, Array, highest, table
from planner.memory.allocator import PlainAllocator
from planner.memory.arena import Arena, Buffer
from planner.network.build import build_network
from planner.network.loss import loss_of
from planner.network.modules import Network
from planner.network.run import ForwardPass
from planner.tables import card_of
from planner.tape import ops
from planner.tape.autograd import Parameter, Tape
from planner.tape.kernels import Workspaces
from planner.training_case import TrainingCase, ZeroSettings
from planner.units import DTYPE_BYTES

EARLIER, LATER = 1, 2  # blocks played


class Meter(Arena):
    """Notes the local maxima of what is allocated, and the sum of all requests."""

    def __init__(self) -> None:
        super().__init__(PlainAllocator())
        self.now = self.total = self.requests = 0
        self.maxima: list[int] = []
        self._rising = False

    def take(self, buffer: Buffer, stream: int) -> None:
        """Count a new buffer."""
        del stream
        buffer.block = self.allocator.malloc(0)
        self.now += buffer.nbytes
        self.total += buffer.nbytes
        self.requests += 1
        self._rising = True

    def give(self, buffer: Buffer) -> None:
        """Count a buffer that goes."""
        buffer.block = None
        self.close()
        self.now -= buffer.nbytes

    def close(self) -> None:
        """Note a maximum, if the last request made one."""
        if self._rising:
            self.maxima.append(self.now)
            self._rising = False


class NoEngine(ReplicatedWeights):
    """Weights that count elsewhere, gradients nobody keeps; notes where backward leaves the blocks."""

    def __init__(self, case: TrainingCase, network: Network, meter: Meter) -> None:
        super().__init__(case, network, meter)
        self.keeps_inputs = case.zero_stage == 3
        self._meter = meter
        self.tail: int | None = None

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """Let it go."""
        if not parameter.name.startswith("embed"):
            self.tail = len(self._meter.maxima)


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass over a few blocks."""

    before: Array
    """Maxima of forward pass and loss."""
    blocks: Array
    """Maxima while backward is in the blocks."""
    tail: Array
    """Maxima of the embedding's backward."""
    total: Array
    requests: int


@dataclass(frozen=True)
class Profile:
    """Passes over one and two blocks."""

    earlier: Pass
    later: Pass

    def top_bytes(self, at: Array, layers: int) -> Array:
        """Most activations at once while every block's are kept."""
        first, second = highest(self.earlier.before, at), highest(self.later.before, at)
        kept = second - first
        in_last_block = highest(self.earlier.blocks, at) + kept * (layers - EARLIER)
        return np.maximum(second + kept * (layers - LATER), in_last_block)

    def low_bytes(self, at: Array) -> Array:
        """Most activations at once where backward ends: in the first block and below it."""
        return np.maximum(highest(self.earlier.blocks, at), highest(self.earlier.tail, at))

    def traffic_bytes(self, at: Array, layers: int) -> Array:
        """All bytes that a pass writes."""
        first, second = self.earlier.total @ at, self.later.total @ at
        return (second + (second - first) * (layers - LATER))[0]

    def requests(self, layers: int) -> int:
        """Tensors that a pass makes: a measure of the kernels it starts."""
        first, second = self.earlier.requests, self.later.requests
        return second + (second - first) * (layers - LATER)


def profile_of(case: TrainingCase) -> Profile:
    """The profile of a case; sizes, ranks and engine do not matter to it."""
    keeps = case.zero_stage == 3 and case.zero.memory_efficient_linear
    return _profile(
        replace(
            case,
            micro_batch=BATCH,
            seq_len=LENGTH,
            world_size=1,
            zero_stage=3 if keeps else 0,
            offload_optimizer="none",
            offload_param="none",
            grad_accum=1,
            sequence_parallel=1,
            expandable_segments=False,
            memory_limit_bytes=None,
            optimizer="deepspeed_adamw",
            grad_accum_dtype=None,
            zero=ZeroSettings(),
        )
    )


@lru_cache(maxsize=512)
def _profile(case: TrainingCase) -> Profile:
    return Profile(_pass(case, EARLIER), _pass(case, LATER))


def _pass(case: TrainingCase, layers: int) -> Pass:
    architecture = replace(case.architecture, layers=layers)
    shallow = replace(
        case, architecture=architecture, freeze_last_layers=min(case.freeze_last_layers, layers)
    )
    meter = Meter()
    network = build_network(shallow)
    if case.engine == "deepspeed":  # which casts what peft made wide
        for parameter in network.parameters():
            parameter.itemsize = DTYPE_BYTES[case.dtype]
    engine = NoEngine(shallow, network, meter)
    tape = Tape(meter, engine, Workspaces(meter, 0, card_of(case.device)), transposes=not engine.keeps_inputs)
    forward = ForwardPass(shallow, network, tape, engine)
    boundary: list[int] = []
    hidden = ops.signal(tape, forward.hidden_states(), lambda: boundary.append(len(meter.maxima)))
    loss, kept = loss_of(forward, hidden)
    del hidden
    tape.backward(loss, meter.new(4, "loss"))
    meter.close()
    del loss, kept
    start = boundary[0] if boundary else len(meter.maxima)
    tail = max(start, len(meter.maxima) if engine.tail is None else engine.tail)
    before, blocks, rest = meter.maxima[:start], meter.maxima[start:tail], meter.maxima[tail:]
    return Pass(table(before), table(blocks), table(rest), table([meter.total]), meter.requests)
