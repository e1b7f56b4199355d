"""Automatic differentiation over sizes: which tensors a backward pass keeps, makes and frees, and when.

The rules are PyTorch's: a node runs when every gradient of its outputs has arrived, later nodes first;
gradients that meet are added in place, unless the first is a view of something else; what a node saved is
released as soon as it has run; a parameter's gradient is handed on before any other node runs. Values do not
exist here, only buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Union

from planner.memory.arena import Arena, Buffer
from planner.tape.kernels import Workspaces

Gradients = list[Buffer | None]
BackwardRule = Callable[[Buffer], Gradients]


class Parameter:
    """A weight: its shape, whether it is trained, and the bytes of one stored element.

    `parts` are the bytes of the tensors that store a quantised weight, of which the largest holds the packed
    values in elements of `unit` bytes; `itemsize` is the type it is computed with.
    """

    __slots__ = ("itemsize", "name", "numel", "parts", "shape", "trainable", "unit")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        trainable: bool,
        itemsize: int,
        parts: tuple[int, ...] = (),
        unit: int = 1,
    ) -> None:
        self.name, self.shape, self.trainable, self.itemsize = name, shape, trainable, itemsize
        numel = 1
        for size in shape:
            numel *= size
        self.numel = numel
        self.parts, self.unit = parts, unit

    @property
    def quantized(self) -> bool:
        """Whether it is stored in fewer bits than it is computed with."""
        return bool(self.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes at rest."""
        return sum(self.parts) or self.numel * self.itemsize

    @property
    def held_numel(self) -> int:
        """Elements of the tensor that an engine shards: of a quantised weight the packed one."""
        return -(-max(self.parts) // self.unit) if self.parts else self.numel

    @property
    def held_itemsize(self) -> int:
        """Bytes of each of those elements."""
        return self.unit if self.parts else self.itemsize


class Node:
    """One step of the backward pass and the buffers it saved for it."""

    __slots__ = ("gives_view", "inputs", "pending", "rule", "saved", "shared")

    def __init__(
        self, rule: BackwardRule, inputs: list[Node | Parameter | None], saved: tuple[Buffer, ...]
    ) -> None:
        self.rule: BackwardRule | None = rule
        self.inputs = inputs
        self.saved = saved
        self.pending: Buffer | None = None
        self.gives_view = self.shared = False
        """Whether its first input's gradient is a view with a base, and whether what is pending is one."""


class Tensor:
    """An activation: `numel` elements of `itemsize` bytes in a buffer that views may share."""

    __slots__ = ("buffer", "itemsize", "node", "numel")

    def __init__(self, buffer: Buffer, numel: int, itemsize: int, node: Node | None = None) -> None:
        self.buffer, self.numel, self.itemsize, self.node = buffer, numel, itemsize, node

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        return self.numel * self.itemsize

    @property
    def needs_grad(self) -> bool:
        """Whether the backward pass reaches this tensor."""
        return self.node is not None

    def view(self) -> Tensor:
        """The same storage and the same place in the graph."""
        return Tensor(self.buffer, self.numel, self.itemsize, self.node)

    def detached(self) -> Tensor:
        """The same storage outside the graph."""
        return Tensor(self.buffer, self.numel, self.itemsize)


Source = Union[Tensor, Parameter, None]  # noqa: UP007 - evaluated at run time on 3.10


class GradientSink(Protocol):
    """Receives the gradient of each parameter as autograd produces it (DeepSpeed's hooks)."""

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """Take a complete gradient."""
        ...


class Tape:
    """Records nodes in the order of the forward pass and runs them backwards.

    Args:
        arena: where tensors live.
        sink: takes the gradients of parameters.
        workspaces: of the matrix products.
        recomputes: the forward pass belongs to a backward pass that makes a block again.
        transposes: the gradient of a linear weight is a transposed view, as `F.linear` leaves it.
    """

    def __init__(
        self,
        arena: Arena,
        sink: GradientSink,
        workspaces: Workspaces,
        *,
        recomputes: bool = False,
        transposes: bool = True,
    ) -> None:
        self.arena, self.sink, self.workspaces, self.recomputes = arena, sink, workspaces, recomputes
        self.transposes = transposes
        self.recording = True
        self.saved = 0
        """How many operators have kept something for backward."""
        self.stop_at: int | None = None
        self.stopped = False
        """What comes after the last operator that keeps something is not made again (early stop)."""
        self.early: list[Buffer] = []
        """Gradients that were made before the block was made again: they need nothing kept."""
        self.late: list[tuple[int, int]] = []
        """Of operators that keep nothing but have a gradient: how many kept something before, and bytes."""
        self.signals: list[tuple[int, Callable[[], None]]] = []
        self._nodes: list[Node] = []
        self._uses: dict[Parameter, int] = {}
        self._partial: dict[Parameter, Buffer] = {}

    def tensor(self, numel: int, itemsize: int, what: str = "activations") -> Tensor:
        """A fresh tensor outside the graph."""
        return Tensor(self.arena.new(0 if self.stopped else numel * itemsize, what), numel, itemsize)

    def reaches_save(self) -> None:
        """An operator comes that keeps its inputs, which it does before it makes its output."""
        if self.recording and self.saved + 1 == self.stop_at:
            self.stopped = True

    def multiplies(self, *, backward: bool = False, biased: bool = False) -> None:
        """A matrix product runs, after its output was allocated; adding a bias takes another workspace."""
        self.workspaces.use(backward=backward or self.recomputes, biased=biased)

    def sums_columns(self, rows: int, columns: int) -> None:
        """A gradient is summed over rows, after the sum was allocated."""
        self.workspaces.sum_columns(rows, columns)

    def attach(
        self,
        out: Tensor,
        rule: BackwardRule,
        inputs: Sequence[Source],
        *,
        saves: tuple[Buffer, ...] = (),
        gives_view: bool = False,
        keeps: bool = False,
    ) -> Tensor:
        """Put `out` into the graph.

        Args:
            out: the tensor that the operator made.
            rule: maps its gradient to one gradient (or None) per input.
            inputs: tensors and parameters that the gradients go to.
            saves: buffers kept alive until the rule has run.
            gives_view: the gradient of the first input is a view, as where `F.linear` flattens its input.
            keeps: it keeps what takes no room of its own, a weight or a number.
        """
        if saves or keeps:
            self.saved += 1
            self.stopped = self.stopped or self.saved == self.stop_at
        edges: list[Node | Parameter | None] = []
        for source in inputs:
            if isinstance(source, Parameter):
                self._uses[source] = self._uses.get(source, 0) + 1
                edges.append(source)
            else:
                edges.append(None if source is None else source.node)
        node = Node(rule, edges, saves)
        node.gives_view = gives_view
        self._nodes.append(node)
        out.node = node
        return out

    def backward(self, loss: Tensor, gradient: Buffer) -> None:
        """Run every node that leads to `loss`, last recorded first."""
        assert loss.node is not None
        self.signals.clear()  # who is told may hold this tape
        loss.node.pending = gradient
        del gradient, loss
        while self._nodes:
            node = self._nodes.pop()
            viewed = node.pending.id if node.shared and node.pending is not None else 0
            gradients = self._run(node)
            node.rule, node.saved = None, ()
            self._pass_on(node, gradients, viewed)

    def forget(self) -> None:
        """Let go of what no backward pass will reach."""
        self._nodes.clear()

    @staticmethod
    def _run(node: Node) -> Gradients:
        pending, node.pending = node.pending, None
        if pending is None or node.rule is None:
            return []
        return node.rule(pending)

    def _pass_on(self, node: Node, gradients: Gradients, viewed: int) -> None:
        """Hand gradients to where they go; `viewed` is the number of a view that came in, and may go on."""
        for target, i in zip(node.inputs, range(len(gradients)), strict=False):
            gradient, gradients[i] = gradients[i], None
            if gradient is None or target is None:
                continue
            if isinstance(target, Parameter):
                self._add_partial(target, gradient)
                del gradient
                self._deliver(target)
            else:
                shared = (node.gives_view and not i) or gradient.id == viewed
                self._arrive(target, gradient, shared=shared)
            gradient = None

    def _arrive(self, target: Node, gradient: Buffer, *, shared: bool) -> None:
        """Add a gradient to the one that is there already, in place unless that is a view.

        A view keeps its base alive also where no graph is made: autograd does not hold the last reference.
        Source: torch 2.13 `autograd/input_buffer.cpp: accumulate`, `autograd/VariableTypeUtils.h: as_view`.
        """
        if target.pending is None:
            target.pending, target.shared = gradient, shared
        elif target.shared:
            target.pending, target.shared = self.arena.new(gradient.nbytes, gradient.what), False

    def _add_partial(self, parameter: Parameter, gradient: Buffer) -> None:
        """Gradients of a weight used twice meet; a transposed view cannot be added to in place."""
        first = self._partial.get(parameter)
        if first is None:
            self._partial[parameter] = gradient
        elif self.transposes:
            self._partial[parameter] = self.arena.new(gradient.nbytes, "gradients")

    def _deliver(self, parameter: Parameter) -> None:
        """Hand a gradient on when every use of the weight has added to it (tied weights have two)."""
        self._uses[parameter] -= 1
        if not self._uses[parameter]:
            del self._uses[parameter]
            self.sink.on_gradient(parameter, self._partial.pop(parameter))
