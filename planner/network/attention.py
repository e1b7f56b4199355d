"""Attention as transformers writes it: `integrations/sdpa_attention.py` and each family's eager code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from planner.architecture.spec import Architecture, Rotary
from planner.memory.arena import Buffer
from planner.network.forward import Forward, fuses_cast
from planner.network.latent import latent_projections, uneven_attention
from planner.network.liger import normalises, turns_in_place
from planner.network.modules import Layer
from planner.network.rotary import rotate
from planner.network.ulysses import between_ranks
from planner.network.views import split
from planner.tables import CPU
from planner.tape import ops, products
from planner.tape.autograd import Tensor

FP32 = 4
LITGPT = "litgpt"


@dataclass(frozen=True)
class Masks:
    """4-D masks of one forward pass: for blocks that see all before them, and for those with a window."""

    full: Buffer | None = None
    windowed: Buffer | None = None


def attention_masks(forward: Forward) -> Masks:
    """Always with eager attention; with sdpa for padded or packed batches, and where a window is exceeded.

    Source: transformers 5.23 `masking_utils.py: _ignore_causal_mask_sdpa`.
    """
    case, arch = forward.case, forward.arch
    if case.attention == "flash_attention_2":
        return Masks()
    eager = case.attention == "eager"
    rows = case.micro_batch if case.masked or eager else 1  # `eager_mask` writes what is only expanded there
    nbytes = rows * case.seq_len**2 * (forward.itemsize if eager else 1)
    needed = eager or case.masked or arch.always_masked
    narrow = arch.sliding_window is not None and case.seq_len >= arch.sliding_window
    windows = bool(arch.windowed_layers)
    everywhere = windows and not arch.global_layers
    new = forward.tape.arena.new
    return Masks(
        full=new(nbytes, "attention mask") if needed and not everywhere else None,
        windowed=new(nbytes, "attention mask") if windows and (needed or narrow) else None,
    )


def _mask(forward: Forward, layer: Layer) -> Buffer | None:
    masks = forward.masks
    return masks.windowed if layer.index in forward.arch.windowed_layers else masks.full


def attention(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Projections, rotary embedding, attention, output projection."""
    return forward.within(x, partial(_attention, forward, layer))


def _attention(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    arch = forward.arch
    if arch.latent is not None:
        q, k, v = latent_projections(forward, layer, x)
    else:
        q, k, v = _queries_keys_values(forward, layer, x)
        if "q_norm" in layer.norms and not arch.qk_norm_inline:
            q, k = forward.norm(layer.norms["q_norm"], q), forward.norm(layer.norms["k_norm"], k)
        q, k = rotate(forward, layer, q, k)
    core = _eager if forward.case.attention == "eager" else _fused
    if forward.case.sequence_parallel > 1:
        out = between_ranks(forward, partial(core, forward, _mask(forward, layer)), q, k, v)
    else:
        out = core(forward, _mask(forward, layer), q, k, v)
    out = forward.linear(layer.linears[arch.out_name], out)
    return out


def _queries_keys_values(forward: Forward, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    arch, linears = forward.arch, layer.linears
    if not arch.fused_qkv:
        q, k, v = (_projected(forward, layer, x, letter) for letter in "qkv")
        return q, k, v
    fused = forward.linear(linears[arch.fused_qkv], x)
    q, k, v = split(forward, fused, (arch.q_width, arch.kv_width, arch.kv_width))
    del fused
    if arch.copied_keys:
        k, v = (ops.rearrange(forward.tape, t, numel=t.numel) for t in (k, v))
    if arch.spread_keys:
        q, k, v = (ops.rearrange(forward.tape, t, numel=q.numel) for t in (q, k, v))
    return q, k, v


def _projected(forward: Forward, layer: Layer, x: Tensor, letter: str) -> Tensor:
    """Queries, keys or values; the gradient of what turned comes back laid out by heads."""
    arch, x = forward.arch, forward.linear(layer.linears[f"{letter}_proj"], x)
    if letter == "v":
        return ops.relayout(forward.tape, x) if _by_heads(forward, layer) else x
    copied = arch.rotary is not Rotary.none and not turns_in_place(forward.case)
    by_norm = arch.qk_norm_whole or (arch.qk_norm_inline and normalises(forward.case, "q_norm"))
    if copied and not by_norm:
        x = ops.relayout(forward.tape, x)
    if arch.qk_norm_inline:
        x = forward.norm(layer.norms[f"{letter}_norm"], x)
    return ops.relayout(forward.tape, x) if copied and by_norm else x


def _by_heads(forward: Forward, layer: Layer) -> bool:
    """Whether the gradient of values comes laid out by heads: from a product, or from a repetition's sum."""
    arch, eager = forward.arch, forward.case.attention == "eager"
    return arch.kv_heads > 1 and (eager or (_grouped(arch) and _mask(forward, layer) is not None))


def _fused(forward: Forward, mask: Buffer | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    arch, tape, tokens = forward.arch, forward.tape, forward.tokens
    if _needs_math_kernel(forward, mask):
        return _math(forward, mask, q, k, v)
    own = forward.case.attention_code == LITGPT  # LitGPT always repeats, and copies
    if mask is not None or own:  # grouped heads are only passed on as they are without a mask
        repeat = _repeated_view if arch.kv_heads == 1 and not own else _repeat
        k, v = repeat(forward, k), repeat(forward, v)
    bias = _bias(forward, mask)
    if arch.latent is not None:
        return uneven_attention(forward, bias, q, k, v)
    out = ops.scaled_dot_product(tape, q, k, v, heads=arch.heads, tokens=tokens, bias=bias)
    del q, k, v
    # The output is laid out as q is; after a torch.cat that is not the layout that is wanted next.
    concatenated = arch.rotary is Rotary.partial and not turns_in_place(forward.case)
    copies = concatenated and bias is None and out.itemsize < FP32
    return ops.elementwise(tape, [out]) if copies else out


def _grouped(arch: Architecture) -> bool:
    """Whether attention itself sees fewer keys than queries."""
    return arch.kv_heads != arch.heads and not arch.spread_keys


def _needs_math_kernel(forward: Forward, mask: Buffer | None) -> bool:
    """On CUDA no fused kernel takes grouped heads in fp32, or without being told (torch `sdp_utils.cpp`).

    `integrations/sdpa_attention.py` tells, or repeats the keys where there is a mask; Falcon does neither.
    """
    if forward.case.device == CPU or not _grouped(forward.arch) or forward.case.attention_code == LITGPT:
        return False
    return forward.arch.copied_keys or (mask is None and forward.itemsize == FP32)


def _bias(forward: Forward, mask: Buffer | None) -> Buffer | None:
    """A boolean mask becomes a bias in the type of q, made and saved anew in each layer."""
    if mask is None:
        return None
    nbytes = forward.case.micro_batch * forward.case.seq_len**2 * forward.itemsize
    return forward.tape.arena.new(nbytes, "attention mask")


def _math(forward: Forward, mask: Buffer | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`_scaled_dot_product_attention_math` (torch 2.13 `transformers/attention.cpp`): all scores, in fp32.

    Each product copies its operands, since batches of heads do not lie evenly.
    """
    tape, arch = forward.tape, forward.arch
    tokens, itemsize = forward.tokens, q.itemsize
    if not arch.copied_keys:  # told of the groups, it repeats keys and values first
        k, v = _repeat(forward, k), _repeat(forward, v)
    q, k, v = (ops.cast(tape, t, FP32) for t in (q, k, v))
    bias = tape.arena.new(forward.case.seq_len**2 * FP32, "attention mask") if mask is None else None
    q, k = _copied(forward, ops.scale(tape, q)), _copied(forward, ops.scale(tape, k))
    weights = products.matmul(tape, q, k, numel=arch.heads * tokens * forward.case.seq_len)
    del q, k, bias
    weights = ops.dropout(tape, ops.softmax(tape, weights), arch.attention_dropout)
    out = products.matmul(tape, weights, _copied(forward, v), numel=tokens * arch.q_width)
    del weights, v
    return _copied(forward, ops.cast(tape, out, itemsize))  # heads move behind positions


def _copied(forward: Forward, x: Tensor) -> Tensor:
    """A copy with as many heads as queries have."""
    return ops.rearrange(forward.tape, x, numel=forward.tokens * forward.arch.q_width)


def _repeat(forward: Forward, x: Tensor) -> Tensor:
    """`repeat_kv`: keys or values once per query head."""
    arch = forward.arch
    return _copied(forward, x) if _grouped(arch) else x


def _repeated_view(forward: Forward, x: Tensor) -> Tensor:
    """A single head is repeated without a copy; the gradients of all repetitions are then summed."""
    out = Tensor(x.buffer, forward.tokens * forward.arch.q_width, x.itemsize)
    if forward.tape.recording and x.needs_grad:
        nbytes, new = x.nbytes, forward.tape.arena.new
        forward.tape.attach(out, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [x])
    return out


def _own(forward: Forward, x: Tensor, *, by_heads: bool = False) -> Tensor:
    """What is not laid out by heads is copied before it is multiplied: batches of it do not lie evenly."""
    if x.buffer.nbytes > x.nbytes:  # part of a fused projection
        return ops.rearrange(forward.tape, x, numel=x.numel)
    return x if by_heads or forward.case.micro_batch == 1 else _passed_on(forward, x)


def _passed_on(forward: Forward, x: Tensor) -> Tensor:
    """A new tensor whose gradient is that of x as it is."""
    tape, out = forward.tape, forward.tape.tensor(x.numel, x.itemsize)
    return tape.attach(out, lambda gradient: [gradient], [x]) if tape.recording and x.needs_grad else out


def _eager(forward: Forward, mask: Buffer | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    tape, arch = forward.tape, forward.arch
    scores = arch.heads * forward.tokens * forward.case.seq_len
    k, v = _repeat(forward, k), _repeat(forward, v)
    again = _grouped(arch) or arch.spread_keys  # repeating keys and values has laid them out by heads
    concatenated = arch.rotary is Rotary.partial
    q, k = (
        _own(forward, t, by_heads=concatenated or done) for t, done in ((q, arch.spread_keys), (k, again))
    )
    v = _own(forward, v, by_heads=again)
    weights = products.matmul(tape, q, k, numel=scores)
    if not arch.copied_keys:  # Falcon divides in place
        weights = ops.scale(tape, weights)
    del q, k
    if arch.attention_softcap:
        weights = ops.scale(tape, weights)
        weights = ops.saves_output(tape, weights)
        weights = ops.scale(tape, weights)
    if mask is not None:
        weights = _passed_on(forward, weights)
    if arch.narrow_softmax:
        weights = ops.softmax(tape, weights)
    else:
        wide = ops.softmax(tape, weights, itemsize=FP32, fuses_cast=fuses_cast(forward.case))
        weights = ops.cast(tape, wide, forward.itemsize)
        del wide
    weights = ops.dropout(tape, weights, arch.attention_dropout)
    out = products.matmul(tape, weights, v, numel=v.numel)
    del weights, v
    return ops.elementwise(tape, [out])  # transpose(1, 2).contiguous()
