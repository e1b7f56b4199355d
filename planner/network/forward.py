"""What attention and feed-forward code needs of the forward pass that it is part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from planner.architecture.spec import Architecture
from planner.memory.arena import Buffer
from planner.network.modules import Layer, Module
from planner.tables import CPU
from planner.tape import ops
from planner.tape.autograd import Parameter, Tape, Tensor
from planner.training_case import TrainingCase

if TYPE_CHECKING:
    from planner.network.attention import Masks

Body = Callable[[Tensor], Tensor]


class BlockHooks(Protocol):
    """FSDP's hooks around each block."""

    def around(self, tape: Tape, layer: Layer, x: Tensor, body: Body) -> Tensor:
        """Run a block; the hooks are on its way forwards and backwards."""
        ...

    def end_forward(self) -> None:
        """The outermost module has run."""
        ...


class WeightHooks(Protocol):
    """DeepSpeed's hooks around each module with parameters (stage 3)."""

    @property
    def blocks(self) -> BlockHooks | None:
        """Hooks around whole blocks, where the engine shards by block."""
        ...

    shards_weights: bool
    keeps_inputs: bool
    """Linear layers keep their input although their weight is frozen (DeepSpeed's own function)."""

    def saved_weight(self, weight: Parameter) -> Buffer | None:
        """The gathered copy that an ordinary linear layer saves for its backward pass."""
        ...

    def packed_weight(self, weight: Parameter) -> Buffer | None:
        """The gathered copy that a product with a bitsandbytes weight holds for its backward pass."""
        ...

    def reach(self, weight: Parameter) -> None:
        """Code outside the weight's own module reads it."""
        ...

    def leave(self) -> None:
        """The module whose code did so has run."""
        ...

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

    def pass_by(self) -> None:
        """A module without weights of its own comes; its hooks fetch ahead as all do."""
        ...

    def pass_back(self) -> None:
        """The same on the way back."""
        ...


class IdleHooks:
    """Hooks where every weight is there: nothing happens around modules."""

    shards_weights = False
    keeps_inputs = False

    @property
    def blocks(self) -> BlockHooks | None:
        """No hooks around blocks."""
        return None

    def saved_weight(self, weight: Parameter) -> Buffer | None:
        """None is gathered."""
        del weight
        return None

    def packed_weight(self, weight: Parameter) -> Buffer | None:
        """None is gathered."""
        del weight
        return None

    def reach(self, weight: Parameter) -> None:
        """It is there."""

    def leave(self) -> None:
        """It stays."""

    def before_forward(self, module: Module) -> None:
        """Nothing to fetch."""

    def after_forward(self, module: Module) -> None:
        """Nothing to release."""

    def before_backward(self, module: Module) -> None:
        """Nothing to fetch."""

    def after_backward(self, module: Module) -> None:
        """Nothing to release."""

    def pass_by(self) -> None:
        """Nothing to fetch."""

    def pass_back(self) -> None:
        """Nothing to fetch."""


def fuses_cast(case: TrainingCase) -> bool:
    """Whether CUDA's softmax reads what it computes in fp32 as it is (torch 2.11 `native/SoftMax.cpp`)."""
    return case.dtype == "fp16" and case.device != CPU


def within(tape: Tape, hooks: WeightHooks, x: Tensor, body: Body) -> Tensor:
    """Run a module without weights of its own with DeepSpeed's hooks around it."""
    if not hooks.shards_weights:
        return body(x)
    hooks.pass_by()
    return ops.signal(tape, body(x), hooks.pass_back)


def hooked(tape: Tape, hooks: WeightHooks, module: Module, x: Tensor, body: Body) -> Tensor:
    """Run one leaf module with DeepSpeed's hooks around it."""
    if not hooks.shards_weights:
        return body(x)
    x = ops.signal(tape, x, lambda: hooks.after_backward(module))
    hooks.before_forward(module)
    out = body(x)
    if not tape.stopped:
        hooks.after_forward(module)
    return ops.signal(tape, out, lambda: hooks.before_backward(module))


class KeptInput(Protocol):
    """The input of a checkpointed block."""

    def to_host(self) -> None:
        """Leave the GPU until it is needed again."""
        ...


class Forward(Protocol):
    """The forward pass, as its parts see it."""

    case: TrainingCase
    arch: Architecture
    tape: Tape
    hooks: WeightHooks
    graph: list[Buffer]
    """What lives until the last name for the loss goes."""
    adapters: bool
    tokens: int
    itemsize: int
    masks: Masks
    rotary: tuple[Buffer, ...]
    kept_inputs: list[KeptInput]
    """Inputs of checkpointed blocks that are still on the GPU."""

    def linear(self, module: Module, x: Tensor) -> Tensor:
        """A linear layer with its adapter."""
        ...

    def plain_linear(self, module: Module, x: Tensor) -> Tensor:
        """A linear layer without its adapter."""
        ...

    def norm(self, module: Module, x: Tensor) -> Tensor:
        """A normalisation."""
        ...

    def call(self, module: Module, x: Tensor, body: Body) -> Tensor:
        """Run a module's code with DeepSpeed's hooks around it."""
        ...

    def passes(self) -> None:
        """A module without weights runs of which no gradient is taken."""
        ...

    def within(self, x: Tensor, body: Body) -> Tensor:
        """Run the code of a module without weights of its own with DeepSpeed's hooks around it."""
        ...
