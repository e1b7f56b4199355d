"""What attention and feed-forward code needs of the forward pass that it is part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from planner.architecture.spec import Architecture
from planner.memory.arena import Buffer
from planner.network.modules import Module
from planner.tape.autograd import Tape, Tensor
from planner.training_case import TrainingCase

Body = Callable[[Tensor], Tensor]


class WeightHooks(Protocol):
    """DeepSpeed's hooks around each module with parameters (stage 3)."""

    shards_weights: bool

    def before_forward(self, module: Module) -> None:
        """Make the module's weights whole."""
        ...

    def after_forward(self, module: Module) -> None:
        """Perhaps let them go."""
        ...

    def before_backward(self, module: Module) -> None:
        """Make the module's weights whole."""
        ...

    def after_backward(self, module: Module) -> None:
        """Perhaps let them go."""
        ...


class Forward(Protocol):
    """The forward pass, as its parts see it."""

    case: TrainingCase
    arch: Architecture
    tape: Tape
    tokens: int
    itemsize: int
    mask: Buffer | None

    def linear(self, module: Module, x: Tensor) -> Tensor:
        """A linear layer with its adapter."""
        ...

    def norm(self, module: Module, x: Tensor) -> Tensor:
        """A normalisation."""
        ...

    def call(self, module: Module, x: Tensor, body: Body) -> Tensor:
        """Run a module's code with DeepSpeed's hooks around it."""
        ...
