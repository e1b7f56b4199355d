"""A plain PyTorch training loop without DeepSpeed: weights, gradients and state as the optimizer keeps them.

What the Trainer of transformers does on one GPU, and with several ranks under DistributedDataParallel.
Weights in 16 bits are stepped as they are: there is no fp32 copy. Source: torch 2.11 `optim`,
`nn/parallel/distributed.py` (buckets as large as the gradients, which stay beside them).
"""

from __future__ import annotations

from planner.deepspeed.base import BUCKETS, ReplicatedWeights
from planner.memory.arena import Buffer
from planner.tape.autograd import Parameter


class PlainLoop(ReplicatedWeights):
    """Everything on every rank, and nothing flattened."""

    def start(self) -> None:
        """DistributedDataParallel makes its buckets; one process has none."""
        self.gradients: dict[Parameter, Buffer] = {}
        self.buckets: list[Buffer] = []
        if self.case.world_size > 1:
            self.buckets = [self.arena.new(p.numel * p.itemsize, BUCKETS) for p in self.trained]

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """`.grad` keeps it; a second micro-batch adds in place."""
        self.gradients.setdefault(parameter, gradient)

    def end_backward(self, *, boundary: bool) -> None:
        """Gradients wait in `.grad`."""

    def step(self) -> None:
        """Step each weight in its own type, then `zero_grad(set_to_none=True)`."""
        for itemsize in sorted({p.itemsize for p in self.trained}):
            group = [(i, p.shape) for i, p in enumerate(self.trained) if p.itemsize == itemsize]
            self.stepper.step_numbered(group, itemsize)
        self.gradients.clear()
