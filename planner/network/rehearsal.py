"""A block run without memory and without fetching weights: where making it again would end."""

from __future__ import annotations

from collections.abc import Callable

from planner.memory.allocator import PlainAllocator
from planner.memory.arena import Arena, Buffer
from planner.network.forward import IdleHooks, WeightHooks
from planner.network.modules import Module, Tail
from planner.tape.autograd import Parameter, Tape, Tensor
from planner.tape.kernels import Workspaces


class Nowhere(Arena):
    """An arena whose buffers take no room."""

    def __init__(self) -> None:
        super().__init__(PlainAllocator())

    def new(self, nbytes: int, what: str, *, stream: int = 0) -> Buffer:
        """Nothing is taken."""
        del nbytes, stream
        return Buffer(self, 0, what, 0)

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """No gradient comes: nothing is run backwards here."""
        raise AssertionError(parameter.name)


class Unfetched(IdleHooks):
    """Hooks that do nothing forwards, and on the way back what the engine's do."""

    def __init__(self, hooks: WeightHooks) -> None:
        self._hooks = hooks
        self.shards_weights, self.keeps_inputs = hooks.shards_weights, hooks.keeps_inputs

    def pass_back(self) -> None:
        """As the engine."""
        self._hooks.pass_back()

    def before_backward(self, module: Module) -> None:
        """As the engine."""
        self._hooks.before_backward(module)

    def after_backward(self, module: Module) -> None:
        """As the engine."""
        self._hooks.after_backward(module)


def rehearsed(x: Tensor, run: Callable[[Tape, Tensor], object], *, wants_grad: bool) -> Tail:
    """Run a block on a tape that goes nowhere; `x` is its input, of which a gradient may be wanted."""
    nowhere = Nowhere()
    tape = Tape(nowhere, nowhere, Workspaces(nowhere, 0), recomputes=True)
    start = Tensor(nowhere.new(0, ""), x.numel, x.itemsize)
    if wants_grad:
        start = tape.attach(start, lambda _: [], [])
    run(tape, start)
    last = [tell for saved, tell in tape.signals if saved == tape.saved]
    tape.forget()
    late = [nbytes for saved, nbytes in tape.late if saved == tape.saved]
    return Tail(tape.saved, tuple(reversed(last)), tuple(reversed(late)))
