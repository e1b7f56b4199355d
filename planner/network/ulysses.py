"""Sequence parallelism: attention over whole sequences and a share of the heads.

Source: DeepSpeed 0.19.8 `sequence/layer.py` (`DistributedAttention`, `single_all_to_all`) with the batch
first, as transformers lays tensors out. Derived from it, not measured.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.tape import ops
from planner.tape.autograd import Gradients, Tape, Tensor

BUFFERS = "all-to-all buffers"
Core = Callable[[Tensor, Tensor, Tensor], Tensor]


def between_ranks(forward: Forward, core: Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exchange q, k and v, attend, exchange the result; the arguments stay until it has returned."""
    tape = forward.tape
    spread = [exchanged(tape, t) for t in (q, k, v)]
    out = core(*spread)
    del spread
    return exchanged(tape, out)


def exchanged(tape: Tape, x: Tensor) -> Tensor:
    """`_SeqAllToAll`: packed by rank, received, put in order; backward does the same with the gradient."""
    out = _exchange(tape, x.nbytes, "activations")
    result = Tensor(out, x.numel, x.itemsize)
    if not (tape.recording and x.needs_grad):
        return result
    nbytes = x.nbytes

    def rule(_gradient: Buffer) -> Gradients:
        return [_exchange(tape, nbytes, ops.ACTIVATION_GRADIENTS)]

    return tape.attach(result, rule, [x])


def _exchange(tape: Tape, nbytes: int, what: str) -> Buffer:
    new = tape.arena.new
    travelling = [new(nbytes, BUFFERS) for _ in range(2)]
    ordered = new(nbytes, what)
    del travelling
    return ordered
