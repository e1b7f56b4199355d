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
    MOMENTS,
    STATES,
    STEP,
    WEIGHTS,
    ReplicatedWeights,
    scratch,
)
from planner.memory.arena import Buffer
from planner.tape.autograd import Parameter

ALLREDUCE_BUCKET = 500_000_000  # engine.buffered_allreduce_fallback: elements_per_buffer


class Stage0(ReplicatedWeights):
    """Weights, gradients and optimizer state replicated."""

    def start(self) -> None:
        """Flatten the trained weights, make the fp32 copy, and take one dummy step for the moments."""
        self.cast_adapters()
        self.gradients: dict[Parameter, Buffer] = {}
        self.states: list[Buffer] = []
        self.mixed = self.itemsize < FP32
        if not self.mixed or not self.trained:
            return
        new, numel = self.arena.new, self.trained_numel
        clones = [new(p.numel * self.itemsize, WEIGHTS) for p in self.trained]
        flat = new(numel * self.itemsize, WEIGHTS)
        del clones
        for parameter in self.trained:
            self.weights[parameter] = flat  # now a view
        copy = new(numel * self.itemsize, MASTER)
        self.states.append(new(numel * FP32, MASTER))
        del copy
        zeros = new(numel * FP32, GRADIENTS)
        self.states += [new(numel * FP32, STATES) for _ in range(MOMENTS)]
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
        """fp32 gradients one by one, then flattened beside them, while the 16-bit ones still live."""
        new, numel = self.arena.new, self.trained_numel
        if not self.mixed:
            if not self.states:
                self.states += [new(p.numel * FP32, STATES) for p in self.trained for _ in range(MOMENTS)]
            self._foreach_temporary(numel)
            self.gradients.clear()
            return
        wide = [new(p.numel * FP32, STEP) for p in self.trained]
        flat = new(numel * FP32, STEP)
        del wide
        self.gradients.clear()
        self._foreach_temporary(numel)
        del flat

    def _foreach_temporary(self, numel: int) -> None:
        if self.case.optimizer == "torch_adamw":
            scratch(self.arena, numel * FP32)
