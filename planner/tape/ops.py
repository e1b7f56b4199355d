"""The operators of transformer models: what each allocates, keeps for backward and gives back.

Each function mirrors one ATen operator or a short Python idiom of transformers. Sources: torch 2.11-2.13
`tools/autograd/derivatives.yaml` (what is saved), transformers 5.17-5.24 modelling files (idioms).
"""

from __future__ import annotations

from collections.abc import Callable

from planner.memory.arena import Buffer
from planner.tape.autograd import Gradients, Parameter, Source, Tape, Tensor
from planner.tape.kernels import SCRATCH

GRADIENTS = "gradients"
ACTIVATION_GRADIENTS = "activation gradients"


def elementwise(
    tape: Tape,
    inputs: list[Tensor],
    *,
    itemsize: int | None = None,
    saves: tuple[Buffer, ...] = (),
    temporaries: int = 0,
    trained: tuple[Parameter, ...] = (),
) -> Tensor:
    """An element-wise operator: one output, one gradient per input that wants one.

    Args:
        tape: where it is recorded.
        inputs: tensors of one size.
        itemsize: bytes per element of the output; None: as the first input.
        saves: buffers kept for backward.
        temporaries: output-sized tensors alive within backward beside the gradients.
        trained: parameters (norm weights) that get a gradient too.
    """
    first = inputs[0]
    wanted = tape.recording and (bool(trained) or any(t.needs_grad for t in inputs))
    if wanted and saves:
        tape.reaches_save()
    out = tape.tensor(first.numel, itemsize or first.itemsize)
    if not wanted:
        return out
    sizes = [(t.nbytes if t.needs_grad else 0) for t in inputs]
    out_bytes = out.nbytes

    def rule(_gradient: Buffer) -> Gradients:
        scratch = [tape.arena.new(out_bytes, ACTIVATION_GRADIENTS) for _ in range(temporaries)]
        result: Gradients = [tape.arena.new(n, ACTIVATION_GRADIENTS) if n else None for n in sizes]
        result += [tape.arena.new(p.numel * p.itemsize, GRADIENTS) for p in trained]
        del scratch
        return result

    sources: list[Source] = [*inputs, *trained]
    return tape.attach(out, rule, sources, saves=saves)


def cast(tape: Tape, x: Tensor, itemsize: int) -> Tensor:
    """`x.to(dtype)`: nothing saved; the same tensor when the type is the same."""
    return x if x.itemsize == itemsize else scale(tape, x, itemsize=itemsize)


def add(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """A + b: nothing saved, and the gradient passes to both sides as it is."""
    out = tape.tensor(a.numel, a.itemsize)
    if not (tape.recording and (a.needs_grad or b.needs_grad)):
        return out
    return tape.attach(out, lambda gradient: [gradient, gradient], [a, b])


def scale(tape: Tape, x: Tensor, *, itemsize: int | None = None) -> Tensor:
    """X times a number, or cast: saves nothing, and is not made again where a block is, for backward."""
    out = tape.tensor(x.numel, itemsize or x.itemsize)
    if not (tape.recording and x.needs_grad):
        return out
    nbytes = x.nbytes
    tape.late.append((tape.saved, nbytes))

    def rule(_gradient: Buffer) -> Gradients:
        return [tape.early.pop(0) if tape.early else tape.arena.new(nbytes, ACTIVATION_GRADIENTS)]

    return tape.attach(out, rule, [x])


def rearrange(tape: Tape, x: Tensor, *, numel: int) -> Tensor:
    """Repeat, pick or add rows: the output has another size, and nothing of x is saved."""
    out = tape.tensor(numel, x.itemsize)
    if not (tape.recording and x.needs_grad):
        return out
    nbytes, new = x.nbytes, tape.arena.new
    return tape.attach(out, lambda _: [new(nbytes, ACTIVATION_GRADIENTS)], [x])


def rotate_half(tape: Tape, x: Tensor) -> Tensor:
    """`torch.cat((-x2, x1))`: the negated half is a tensor of its own; backward pads each half with zeros."""
    half_bytes, nbytes, new = x.nbytes // 2, x.nbytes, tape.arena.new
    negated = new(half_bytes, "activations")
    out = tape.tensor(x.numel, x.itemsize)
    del negated
    if not (tape.recording and x.needs_grad):
        return out

    def rule(_gradient: Buffer) -> Gradients:
        negated = new(half_bytes, ACTIVATION_GRADIENTS)
        padded = new(nbytes, ACTIVATION_GRADIENTS)
        del negated
        new(nbytes, ACTIVATION_GRADIENTS)  # the other half, added in place
        return [padded]

    return tape.attach(out, rule, [x])


def relayout(tape: Tape, x: Tensor) -> Tensor:
    """A view of x whose gradient has to be copied: it is laid out by heads, x by positions."""
    out = x.detached()
    if not (tape.recording and x.needs_grad):
        return out
    nbytes, new = x.nbytes, tape.arena.new
    return tape.attach(out, lambda _: [new(nbytes, ACTIVATION_GRADIENTS)], [x])


def multiply(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """A * b of the same shape: each side is saved when the other wants a gradient."""
    saves = tuple(t.buffer for t, other in ((a, b), (b, a)) if other.needs_grad)
    return elementwise(tape, [a, b], saves=saves)


def activation(tape: Tape, x: Tensor) -> Tensor:
    """silu, gelu or gelu_tanh as one ATen operator: saves its input."""
    return elementwise(tape, [x], saves=(x.buffer,))


def saves_output(tape: Tape, x: Tensor, *, itemsize: int | None = None) -> Tensor:
    """relu, tanh, log-softmax: an operator that saves its own output."""
    out = tape.tensor(x.numel, itemsize or x.itemsize)
    if not (tape.recording and x.needs_grad):
        return out
    in_bytes = x.nbytes
    return tape.attach(
        out, lambda _: [tape.arena.new(in_bytes, ACTIVATION_GRADIENTS)], [x], saves=(out.buffer,)
    )


def softmax(tape: Tape, x: Tensor, *, itemsize: int | None = None, fuses_cast: bool = False) -> Tensor:
    """Softmax saves its output, and backward multiplies that by the gradient before anything else.

    Source: torch 2.11 `native/cuda/SoftMax.cu: softmax_backward_cuda_out`, `native/SoftMax.cpp: softmax`.

    Args:
        tape: where it is recorded.
        x: the input.
        itemsize: bytes per element of the type that it is computed in; None: as the input.
        fuses_cast: the kernel reads the narrower type; else the input is cast first.
    """
    itemsize = itemsize or x.itemsize
    wide = x if fuses_cast else cast(tape, x, itemsize)
    out = tape.tensor(x.numel, itemsize)
    if not (tape.recording and x.needs_grad):
        return out
    in_bytes, out_bytes, new = wide.nbytes, out.nbytes, tape.arena.new

    def rule(_gradient: Buffer) -> Gradients:
        grad_in = new(in_bytes, ACTIVATION_GRADIENTS)
        new(out_bytes, SCRATCH)
        return [grad_in]

    return tape.attach(out, rule, [wide], saves=(out.buffer,))


def dropout(tape: Tape, x: Tensor, p: float) -> Tensor:
    """`native_dropout` on CUDA: a one-byte mask is saved."""
    if p <= 0:
        return x
    mask = tape.arena.new(x.numel, "activations")
    return elementwise(tape, [x], saves=(mask,))


def embedding(tape: Tape, weight: Parameter, tokens: int) -> Tensor:
    """Look up `tokens` rows; backward makes a dense gradient as large as the table."""
    out = tape.tensor(tokens * weight.shape[1], weight.itemsize)
    if not (tape.recording and weight.trainable):
        return out
    grad_bytes = weight.numel * weight.itemsize
    return tape.attach(out, lambda _gradient: [tape.arena.new(grad_bytes, GRADIENTS)], [weight])


def scaled_dot_product(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, *, heads: int, tokens: int, bias: Buffer | None = None
) -> Tensor:
    """FlashAttention behind `scaled_dot_product_attention`.

    Saves q, k, v, the output and an fp32 log-sum-exp per token and head. Backward
    (`mha_bwd` of torch's flash_attn): the gradients, row sums, an fp32 accumulator for dq, dk and dv
    per query head before they are summed over the group.
    """
    statistics_bytes, accumulator_bytes, wide_bytes = tokens * heads * 4, q.numel * 4, q.nbytes
    out, statistics = tape.tensor(q.numel, q.itemsize), tape.arena.new(statistics_bytes, "activations")
    if not (tape.recording and (q.needs_grad or k.needs_grad or v.needs_grad)):
        return out
    kept = (q.buffer, k.buffer, v.buffer, out.buffer, statistics)
    kept += () if bias is None else (bias,)
    sizes = (q.nbytes, k.nbytes, v.nbytes)

    def rule(_gradient: Buffer) -> Gradients:
        arena = tape.arena
        grads: Gradients = [arena.new(n, ACTIVATION_GRADIENTS) for n in sizes]
        scratch = [arena.new(n, ACTIVATION_GRADIENTS) for n in (statistics_bytes, accumulator_bytes)]
        scratch += [arena.new(wide_bytes, ACTIVATION_GRADIENTS) for n in sizes[1:] if n != wide_bytes]
        del scratch
        return grads

    return tape.attach(out, rule, [q, k, v], saves=kept)


def signal(tape: Tape, x: Tensor, on_backward: Callable[[], None]) -> Tensor:
    """A node that only tells when the backward pass comes by."""
    if not (tape.recording and x.needs_grad):
        return x
    if tape.stopped:  # told when the way back came to what is made again
        return x
    tape.signals.append((tape.saved, on_backward))

    def rule(gradient: Buffer) -> Gradients:
        on_backward()
        return [gradient]

    return tape.attach(x.view(), rule, [x])
