"""Matrix products: linear layers, plain and packed, and products of two activations.

Sources: torch 2.11-2.13 `tools/autograd/derivatives.yaml`, DeepSpeed 0.19.8 `zero/linear.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.memory.arena import Buffer
from planner.tape.autograd import Gradients, Parameter, Tape, Tensor
from planner.tape.ops import ACTIVATION_GRADIENTS, GRADIENTS


def linear(
    tape: Tape,
    x: Tensor,
    weight: Parameter,
    *,
    rows: int,
    bias: Parameter | None = None,
    keeps_input: bool = False,
    whole: Buffer | None = None,
) -> Tensor:
    """`F.linear`: x is [rows, in], out is [rows, out].

    Args:
        tape: where it is recorded.
        x: the input.
        weight: [out, in].
        rows: rows of x.
        bias: [out], if there is one.
        keeps_input: save x although the weight is frozen, as DeepSpeed's ZeRO-3 linear does
            (`zero/linear.py: LinearFunctionForZeroStage3`).
        whole: gathered copy of the weight, which autograd keeps where x needs a gradient.
    """
    trained = [p for p in (weight, bias) if p is not None and p.trainable]
    if not keeps_input and (x.needs_grad or trained):
        tape.reaches_save()
    out = tape.tensor(rows * weight.shape[0], x.itemsize)
    tape.multiplies(biased=bias is not None and not keeps_input)
    if not (tape.recording and (x.needs_grad or trained)):
        return out
    in_bytes = x.nbytes if x.needs_grad else 0
    grad_bytes = [p.numel * x.itemsize for p in trained]
    new = tape.arena.new

    def rule(_gradient: Buffer) -> Gradients:
        # DeepSpeed's function makes the input's gradient first, autograd's the weight's.
        grad_in = new(in_bytes, ACTIVATION_GRADIENTS) if in_bytes and keeps_input else None
        grads = [new(n, GRADIENTS) for n in grad_bytes]
        tape.multiplies(backward=True)
        if in_bytes and not keeps_input:
            grad_in = new(in_bytes, ACTIVATION_GRADIENTS)
        if bias is not None and bias.trainable:
            tape.sums_columns(rows, bias.numel)  # last: autograd's `validate_outputs`
        return [grad_in, *grads]

    saves = (x.buffer,) if weight.trainable or keeps_input else ()
    if whole is not None and in_bytes:
        saves += (whole,)
    return tape.attach(out, rule, [x, *trained], saves=saves, gives_view=not keeps_input, keeps=True)


def quantized_linear(tape: Tape, x: Tensor, weight: Parameter, *, rows: int, unpacked: int = 0) -> Tensor:
    """A product with a bitsandbytes weight, which is unpacked each time; nothing of x is saved.

    Args:
        tape: where it is recorded.
        x: the input.
        weight: [out, in].
        rows: rows of x.
        unpacked: bytes of an element of the type that is unpacked to before the cast to that of x; 0: none.
    """
    weight_bytes = weight.numel * x.itemsize
    unpacks = _unpacks(tape, weight.numel * unpacked, weight_bytes)
    whole = unpacks()
    out = tape.tensor(rows * weight.shape[0], x.itemsize)
    tape.multiplies()
    del whole
    if not (tape.recording and x.needs_grad):
        return out
    in_bytes = x.nbytes

    def rule(_gradient: Buffer) -> Gradients:
        whole = unpacks()
        grad_in = tape.arena.new(in_bytes, ACTIVATION_GRADIENTS)
        tape.multiplies(backward=True)
        del whole
        return [grad_in]

    return tape.attach(out, rule, [x])


def _unpacks(tape: Tape, first_bytes: int, weight_bytes: int) -> Callable[[], Buffer]:
    """Makes a weight whole: in the type it was packed from, then in the one it is multiplied in."""

    def whole() -> Buffer:
        first = tape.arena.new(first_bytes, "unpacked weights")
        second = tape.arena.new(weight_bytes, "unpacked weights")
        del first
        return second

    return whole


def matmul(tape: Tape, a: Tensor, b: Tensor, *, numel: int) -> Tensor:
    """A @ b of two activations: both are saved."""
    out = tape.tensor(numel, a.itemsize)
    if not (tape.recording and (a.needs_grad or b.needs_grad)):
        return out
    sizes = [t.nbytes if t.needs_grad else 0 for t in (a, b)]

    def rule(_gradient: Buffer) -> Gradients:
        made = [tape.arena.new(n, ACTIVATION_GRADIENTS) if n else None for n in reversed(sizes)]
        return made[::-1]  # that of b comes first

    return tape.attach(out, rule, [a, b], saves=(a.buffer, b.buffer))
