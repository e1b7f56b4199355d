"""ZeRO stage 0: everything on every rank.

bf16 and fp16 go through `runtime/fp16/fused_optimizer.py: FP16_Optimizer` (flat groups) with DeepSpeed's
own Adam, and through `unfused_optimizer.py` with another optimizer. fp32 has no wrapper.
"""

from __future__ import annotations

from planner.deepspeed.base import (
    BUCKETS,
    FP32,
    GRADIENTS,
    MASTER,
    STEP,
    WEIGHTS,
    ReplicatedWeights,
    scratch,
)
from planner.memory.arena import Arena, Buffer
from planner.network.modules import Network
from planner.tape.autograd import Parameter
from planner.training_case import TrainingCase

ALLREDUCE_BUCKET = 500_000_000  # engine.buffered_allreduce_fallback: elements_per_buffer


class Stage0(ReplicatedWeights):
    """Weights, gradients and optimizer state replicated."""

    def __init__(self, case: TrainingCase, network: Network, arena: Arena) -> None:
        super().__init__(case, network, arena)
        self.gradients: dict[Parameter, Buffer] = {}
        self.states: list[Buffer] = []
        self.mixed = self.itemsize < FP32
        self.fused = self.mixed and case.optimizer == "deepspeed_adamw"
        # What the optimizer steps: one flat tensor, or each parameter.
        self.stepped = [(self.trained_numel,)] if self.fused else [p.shape for p in self.trained]

    def start(self) -> None:
        """The fp32 copy, and one dummy step that makes the moments."""
        self.cast_adapters()
        if not self.mixed or not self.trained:
            return
        if self.fused:
            self._flatten()
        else:
            for parameter in self.trained:
                copy = self.arena.new(parameter.numel * self.itemsize, MASTER)
                self.states.append(self.arena.new(parameter.numel * FP32, MASTER))
                del copy
        self._dummy_step()

    def _flatten(self) -> None:
        new, numel = self.arena.new, self.trained_numel
        clones = [new(p.numel * self.itemsize, WEIGHTS) for p in self.trained]
        flat = new(numel * self.itemsize, WEIGHTS)
        del clones
        for parameter in self.trained:
            self.weights[parameter] = [flat]  # now a view
        copy = new(numel * self.itemsize, MASTER)
        self.states.append(new(numel * FP32, MASTER))
        del copy

    def _dummy_step(self) -> None:
        """`initialize_optimizer_states`: zero gradients, in both types where nothing is fused."""
        new = self.arena.new
        zeros = [] if self.fused else [new(p.numel * self.itemsize, GRADIENTS) for p in self.trained]
        if self.fused:
            zeros.append(new(self.trained_numel * FP32, GRADIENTS))
        else:
            zeros += [new(p.numel * FP32, GRADIENTS) for p in self.trained]
        self.stepper.step(self.stepped)
        del zeros

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """`.grad` keeps it; a second micro-batch adds in place."""
        self.gradients.setdefault(parameter, gradient)

    def end_backward(self, *, boundary: bool) -> None:
        """Average over the ranks, a flattened bucket at a time."""
        if not boundary:
            return
        bucket = 0
        for parameter in self.trained:
            bucket += parameter.numel
            if bucket > ALLREDUCE_BUCKET:
                scratch(self.arena, bucket * self.itemsize, BUCKETS)
                bucket = 0
        if bucket:
            scratch(self.arena, bucket * self.itemsize, BUCKETS)

    def step(self) -> None:
        """Make the gradients fp32 and step; the fused wrapper flattens them too."""
        if not self.mixed:
            self.stepper.step(self.stepped)
            self.gradients.clear()
            return
        if not self.fused:  # get_weight_norm looks at each weight in fp32
            for parameter in self.trained:
                scratch(self.arena, parameter.numel * FP32)
        wide = [self.arena.new(p.numel * FP32, STEP) for p in self.trained]
        if self.fused:
            flat = self.arena.new(self.trained_numel * FP32, STEP)
            del wide
            self.gradients.clear()
            self.stepper.step(self.stepped)
            del flat
            return
        self.stepper.step(self.stepped)
        del wide
        self.gradients.clear()
