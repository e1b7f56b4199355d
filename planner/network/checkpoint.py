"""Activation checkpointing: keep the input of a block, run the block again on the way back.

Sources: torch 2.11 `utils/checkpoint.py` (both ways), DeepSpeed 0.19.8
`runtime/activation_checkpointing/checkpointing.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Layer, Tail
from planner.network.rehearsal import Unfetched, rehearsed
from planner.tape.autograd import Gradients, Tape, Tensor
from planner.tape.ops import ACTIVATION_GRADIENTS

Block = Callable[[Layer, Tensor], Tensor]


class Kept:
    """The input of one block between forward and backward, on the GPU or in main memory."""

    def __init__(self, x: Tensor) -> None:
        self._x = x
        self._numel, self._itemsize = x.numel, x.itemsize
        self._away = False

    def to_host(self) -> None:
        """DeepSpeed's `cpu_checkpointing`: the copy on the GPU goes."""
        if not self._away:
            self._away = True
            del self._x

    def take(self, tape: Tape) -> Tensor:
        """The input again, on the GPU."""
        if self._away:
            return tape.tensor(self._numel, self._itemsize)
        return self._x


def checkpointed(forward: Forward, layer: Layer, x: Tensor, block: Block) -> Tensor:
    """Run a block without recording it; its backward pass runs it again."""
    tape = forward.tape
    was_recording, tape.recording = tape.recording, False
    out = block(layer, x.detached())
    tape.recording = was_recording
    wants_grad = x.needs_grad
    trained = any(p.trainable for m in layer.modules() for p in m.all())
    if not (was_recording and (wants_grad or trained)):
        return out
    kept = Kept(x.detached())
    if forward.case.checkpointing.cpu:
        # The last input stays (keep_last_count=1): it is needed at once.
        for earlier in forward.kept_inputs:
            earlier.to_host()
        forward.kept_inputs[:] = [kept]

    def rule(gradient: Buffer) -> Gradients:
        return [
            _recompute(forward, layer, kept.take(forward.tape), gradient, block=block, wants_grad=wants_grad)
        ]

    return tape.attach(out, rule, [x])


def _recompute(
    forward: Forward, layer: Layer, x: Tensor, gradient: Buffer, *, block: Block, wants_grad: bool
) -> Buffer | None:
    """Run the block again, recording it, and its backward pass; gives back the gradient of its input."""
    outer = forward.tape
    inner = Tape(outer.arena, outer.sink, outer.workspaces, recomputes=True, transposes=outer.transposes)
    forward.tape = inner
    arrived: list[Buffer] = []
    if not forward.case.checkpointing.reenters:
        tail = _tail(forward, layer, x, block, wants_grad=wants_grad)
        inner.stop_at = tail.saved
        for tell in tail.signals:
            tell()
        inner.early = [outer.arena.new(nbytes, ACTIVATION_GRADIENTS) for nbytes in tail.gradients]
    start = _start(inner, x, arrived) if wants_grad else x.view()
    out = block(layer, start)
    del start
    held = out.buffer if forward.case.checkpointing.reenters else None
    # Where nothing reenters, the recomputed output itself is not needed.
    loss = Tensor(gradient, out.numel, out.itemsize, out.node)
    del out
    inner.backward(loss, gradient)
    del held
    forward.tape = outer
    return arrived[0] if arrived else None


def _tail(forward: Forward, layer: Layer, x: Tensor, block: Block, *, wants_grad: bool) -> Tail:
    """Where the block ends for backward: torch makes it again up to the last operator that keeps something.

    Hooks of modules that end later come before that (`utils/checkpoint.py: _StopRecomputationError`).
    """
    known = layer.tails.get(forward.adapters)
    if known is not None:
        return known

    def run(tape: Tape, start: Tensor) -> None:
        kept = forward.tape, forward.hooks, len(forward.graph)
        forward.tape, forward.hooks = tape, Unfetched(forward.hooks)
        block(layer, start)
        forward.tape, forward.hooks = kept[:2]
        del forward.graph[kept[2] :]

    tail = layer.tails[forward.adapters] = rehearsed(x.detached(), run, wants_grad=wants_grad)
    return tail


def _start(tape: Tape, x: Tensor, arrived: list[Buffer]) -> Tensor:
    """The input as a leaf whose gradient is put aside."""

    def keep(gradient: Buffer) -> Gradients:
        arrived.append(gradient)
        return []

    return tape.attach(x.view(), keep, [])
