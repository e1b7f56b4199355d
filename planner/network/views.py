"""Parts of one buffer as tensors of their own."""

from __future__ import annotations

from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor


def split(forward: Forward, fused: Tensor, widths: tuple[int, ...]) -> list[Tensor]:
    """Views into one buffer; their gradients are put together into one of the full width."""
    parts = [Tensor(fused.buffer, forward.tokens * w, fused.itemsize) for w in widths]
    new, total = forward.tape.arena.new, fused.nbytes

    def rule(_gradient: Buffer) -> Gradients:
        return [new(total, ops.ACTIVATION_GRADIENTS)]

    if forward.tape.recording and fused.needs_grad:
        for part in parts:
            forward.tape.attach(part, rule, [fused])
    return parts
