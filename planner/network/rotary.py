"""Rotary positions as transformers writes them: `apply_rotary_pos_emb` of each family."""

from __future__ import annotations

from planner.architecture.spec import Rotary
from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.liger import turned, turns_in_place
from planner.network.modules import Layer
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor

FP32 = 4


def rotary_tables(forward: Forward) -> tuple[Buffer, ...]:
    """Cosines and sines, one row a position; each product with them keeps them."""
    arch = forward.arch
    if arch.rotary is Rotary.none:
        return ()
    itemsize = FP32 if arch.rotary is Rotary.fp32_tables else forward.itemsize
    forward.passes()
    kinds = 2 if arch.rotary_per_kind and arch.global_layers else 1
    return tuple(table for _ in range(kinds) for table in _made(forward, itemsize))


def _made(forward: Forward, itemsize: int) -> tuple[Buffer, ...]:
    """Both tables of one kind: angles, their cosines and sines, scaled, in fp32; then as they are used."""
    numel = forward.case.seq_len * (forward.arch.rotary_width or forward.arch.head_dim)
    tape = forward.tape
    half = tape.arena.new(numel // 2 * FP32, "activations")
    tape.multiplies()  # frequencies x positions
    wide = [tape.arena.new(numel * FP32, "activations")]
    for _ in range(2):
        plain = tape.arena.new(numel * FP32, "activations")
        wide.append(tape.arena.new(numel * FP32, "activations"))
        del plain
    if itemsize == FP32:
        return wide[1], wide[2]
    tables = tuple(tape.arena.new(numel * itemsize, "activations") for _ in range(2))
    del half
    return tables


def rotate(forward: Forward, layer: Layer, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by their positions."""
    arch = forward.arch
    if arch.rotary is Rotary.none or layer.index in arch.unrotated_layers:
        return q, k
    tables = _tables(forward, layer)
    if turns_in_place(forward.case):
        k, q = turned(forward, tables, k), turned(forward, tables, q)
        return q, k
    q, k = _turned(forward, tables, q), _turned(forward, tables, k)
    return (ops.scale(forward.tape, q) if arch.scaled_queries else q), k


def _turned(forward: Forward, tables: tuple[Buffer, ...], x: Tensor) -> Tensor:
    style, itemsize = forward.arch.rotary, x.itemsize
    if style is Rotary.partial:
        return _partial(forward, tables, x)
    if style is Rotary.full:
        return _full(forward, tables, x, itemsize)
    if style is Rotary.fp32:
        x = ops.cast(forward.tape, x, FP32)
    turned = _full(forward, tables, x, FP32)
    del x
    return ops.cast(forward.tape, turned, itemsize)


def _tables(forward: Forward, layer: Layer) -> tuple[Buffer, ...]:
    """Cosines and sines for this block."""
    full = layer.index not in forward.arch.windowed_layers
    tables = forward.rotary[-2:] if full else forward.rotary[:2]
    if not forward.arch.interleaved_tables:
        return tables
    return tuple(forward.tape.arena.new(table.nbytes, "activations") for table in tables)


def _full(forward: Forward, tables: tuple[Buffer, ...], x: Tensor, itemsize: int) -> Tensor:
    """X * cos + rotate_half(x) * sin: cos and sin are saved, the input is not."""
    tape, (cosines, sines) = forward.tape, tables
    straight = ops.elementwise(tape, [x], itemsize=itemsize, saves=(cosines,))
    half = ops.rotate_half(tape, x)
    turned = ops.elementwise(tape, [half], itemsize=itemsize, saves=(sines,))
    del half
    return ops.add(tape, straight, turned)


def _partial(forward: Forward, tables: tuple[Buffer, ...], x: Tensor) -> Tensor:
    """The first `rotary_width` elements of each head turn; `torch.cat` puts the rest behind them."""
    tape, arch = forward.tape, forward.arch
    turning = _slice(forward, x, x.numel * (arch.rotary_width or arch.head_dim) // arch.head_dim)
    turned = _full(forward, tables, turning, x.itemsize)
    del turning
    out = tape.tensor(x.numel, x.itemsize)
    if not (tape.recording and x.needs_grad):
        return out
    nbytes, new = x.nbytes, tape.arena.new

    def rule(gradient: Buffer) -> Gradients:
        """Views of one gradient; that of the part left alone is padded with zeros to the full width."""
        return [gradient, new(nbytes, ops.ACTIVATION_GRADIENTS)]

    return tape.attach(out, rule, [turned, x])


def _slice(forward: Forward, x: Tensor, numel: int) -> Tensor:
    """A view of part of x; its gradient is padded with zeros."""
    part = Tensor(x.buffer, numel, x.itemsize)
    if forward.tape.recording and x.needs_grad:
        nbytes, new = x.nbytes, forward.tape.arena.new
        forward.tape.attach(part, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [x])
    return part
