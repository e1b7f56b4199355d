"""ZeRO stage 1 in bf16 with gradients accumulated in fp32: `runtime/bf16_optimizer.py: BF16_Optimizer`.

Optimizer state is sharded; every rank keeps all gradients twice, in bf16 as autograd leaves them and in
one flat fp32 buffer.
"""

from __future__ import annotations

from planner.deepspeed.base import BUCKETS, FP32, GRADIENTS, MASTER, WEIGHTS, ReplicatedWeights, scratch
from planner.memory.arena import Arena, Buffer
from planner.network.modules import Network
from planner.tape.autograd import Parameter
from planner.training_case import TrainingCase
from planner.units import ceil_div


class Bf16Stage1(ReplicatedWeights):
    """Replicated weights and gradients, sharded state."""

    def __init__(self, case: TrainingCase, network: Network, arena: Arena) -> None:
        super().__init__(case, network, arena)
        self.part = ceil_div(self.trained_numel, 2 * case.world_size) * 2
        self.flat_numel = self.part * case.world_size
        self.states: list[Buffer] = []
        self.gradients: dict[Parameter, Buffer] = {}

    def start(self) -> None:
        """Flat weights, this rank's fp32 part, and flat fp32 gradients of everything."""
        self.cast_adapters()
        new = self.arena.new
        flat = new(self.flat_numel * self.itemsize, WEIGHTS)
        for parameter in self.trained:
            self.weights[parameter] = [flat]
        copy = new(self.part * self.itemsize, MASTER)
        self.states.append(new(self.part * FP32, MASTER))
        del copy
        self.states.append(new(self.flat_numel * FP32, GRADIENTS))

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """`.grad` keeps it until the step, zeroed between micro-batches."""
        self.gradients.setdefault(parameter, gradient)

    def end_backward(self, *, boundary: bool) -> None:
        """`update_hp_grads` widens one gradient after the other; the sum travels in the weights' type."""
        for parameter in self.gradients:
            scratch(self.arena, parameter.numel * FP32, BUCKETS)
        if boundary and self.case.world_size > 1:
            scratch(self.arena, self.flat_numel * self.itemsize, BUCKETS)

    def step(self) -> None:
        """The gradients of this part are a view; nothing is copied."""
        self.stepper.step([(self.part,)])
        self.gradients.clear()
