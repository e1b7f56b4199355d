"""The planner's figures for a plain training step: no DeepSpeed, no optimizer, exact sizes."""

from __future__ import annotations

from planner.deepspeed.base import ReplicatedWeights
from planner.memory.allocator import PlainAllocator
from planner.memory.arena import Arena, Buffer
from planner.network.build import build_network
from planner.network.loss import stock_loss
from planner.network.run import ForwardPass
from planner.tape.autograd import Parameter, Tape
from planner.tape.kernels import Workspaces
from planner.training import TOKEN_BYTES
from planner.training_case import TrainingCase

from .figures import Figures


class PlainEngine(ReplicatedWeights):
    """Weights whose gradients stay in `.grad`, as without any engine."""

    def start(self) -> None:
        """Nothing is flattened."""
        self.gradients: dict[Parameter, Buffer] = {}

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """Keep it."""
        self.gradients[parameter] = gradient


def planned_figures(case: TrainingCase) -> Figures:
    """Play one micro-batch on sizes."""
    arena = Arena(PlainAllocator())
    network = build_network(case)
    engine = PlainEngine(case, network, arena)
    engine.load()
    engine.start()
    weights = arena.allocator.allocated
    arena.end_phase("load")
    ids = [arena.new(case.tokens * TOKEN_BYTES, "inputs") for _ in range(2)]
    tape = Tape(arena, engine, Workspaces(arena, 0))
    forward = ForwardPass(case, network, tape, engine)
    loss, kept = stock_loss(forward, forward.hidden_states())
    del forward
    arena.end_phase("forward")
    tape.backward(loss, arena.new(4, "loss"))
    arena.end_phase("backward")
    del loss, kept, ids
    _, forward_phase, backward_phase = arena.phases
    return Figures(
        parameters=sum(p.numel for p in network.parameters()),
        weight_bytes=weights,
        forward_end_bytes=forward_phase.end_bytes - weights,
        forward_peak_bytes=forward_phase.peak_bytes - weights,
        backward_peak_bytes=backward_phase.peak_bytes - weights,
    )
