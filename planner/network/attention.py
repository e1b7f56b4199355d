"""Attention as transformers writes it: `integrations/sdpa_attention.py` and each family's eager code."""

from __future__ import annotations

from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Layer
from planner.tables import CPU
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor

FP32 = 4
OUTPUT_NAMES = ("o_proj", "out_proj", "attn.c_proj")


def attention_mask(forward: Forward) -> Buffer | None:
    """A 4-D mask: always with eager attention, with sdpa only for padded batches."""
    case = forward.case
    if case.attention == "flash_attention_2" or (case.attention == "sdpa" and not case.padded):
        return None
    rows = case.micro_batch if case.padded else 1
    itemsize = forward.itemsize if case.attention == "eager" else 1
    return forward.tape.arena.new(rows * case.seq_len**2 * itemsize, "attention mask")


def attention(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Projections, rotary embedding, attention, output projection."""
    q, k, v = _queries_keys_values(forward, layer, x)
    del x
    if forward.arch.qk_norm:
        q, k = forward.norm(layer.norms["q_norm"], q), forward.norm(layer.norms["k_norm"], k)
    if not forward.arch.learned_positions:
        q, k = _rotate(forward, q), _rotate(forward, k)
    core = _eager if forward.case.attention == "eager" else _fused
    out = core(forward, q, k, v)
    del q, k, v
    name = next(n for n in OUTPUT_NAMES if n in layer.linears)
    return forward.linear(layer.linears[name], out)


def _queries_keys_values(forward: Forward, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    arch, linears = forward.arch, layer.linears
    if not arch.fused_qkv:
        q, k, v = (forward.linear(linears[n], x) for n in ("q_proj", "k_proj", "v_proj"))
        return q, k, v
    fused = forward.linear(linears[arch.fused_qkv], x)
    q, k, v = split(forward, fused, (arch.q_width, arch.kv_width, arch.kv_width))
    return q, k, v


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


def _rotate(forward: Forward, x: Tensor) -> Tensor:
    """X * cos + rotate_half(x) * sin: cos and sin are saved, the input is not."""
    tape = forward.tape
    straight = ops.scale(tape, x)
    half = ops.elementwise(tape, [x])
    turned = ops.scale(tape, half)
    del half
    return ops.add(tape, straight, turned)


def _fused(forward: Forward, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    arch, tape, tokens = forward.arch, forward.tape, forward.tokens
    if forward.mask is not None:  # grouped heads are only passed on as they are without a mask
        k, v = _repeat(forward, k), _repeat(forward, v)
    elif _needs_math_kernel(forward):
        return _math(forward, q, _repeat(forward, k), _repeat(forward, v))
    bias = _bias(forward)
    out = ops.scaled_dot_product(tape, q, k, v, heads=arch.heads, tokens=tokens, bias=bias)
    del q, k, v
    # The output is laid out as q is; after a torch.cat that is not the layout that is wanted next.
    return ops.elementwise(tape, [out]) if arch.concatenated_rotary else out


def _needs_math_kernel(forward: Forward) -> bool:
    """On CUDA no fused kernel takes grouped heads in fp32 (torch `sdp_utils.cpp`)."""
    grouped = forward.arch.kv_heads != forward.arch.heads
    return grouped and forward.itemsize == FP32 and forward.case.device != CPU


def _bias(forward: Forward) -> Buffer | None:
    """A boolean mask becomes a bias in the type of q, made and saved anew in each layer."""
    if forward.mask is None:
        return None
    nbytes = forward.case.micro_batch * forward.case.seq_len**2 * forward.itemsize
    return forward.tape.arena.new(nbytes, "attention mask")


def _math(forward: Forward, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`_scaled_dot_product_attention_math`: the whole matrix of scores."""
    tape, arch = forward.tape, forward.arch
    scores = arch.heads * forward.tokens * forward.case.seq_len
    weights = ops.matmul(tape, ops.scale(tape, q), ops.scale(tape, k), numel=scores)
    del q, k
    weights = ops.saves_output(tape, weights)
    return ops.matmul(tape, weights, v, numel=forward.tokens * arch.q_width)


def _repeat(forward: Forward, x: Tensor) -> Tensor:
    """`repeat_kv`: keys or values once per query head."""
    arch = forward.arch
    if arch.kv_heads == arch.heads:
        return x
    return ops.rearrange(forward.tape, x, numel=forward.tokens * arch.q_width)


def _eager(forward: Forward, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    tape, arch = forward.tape, forward.arch
    scores = arch.heads * forward.tokens * forward.case.seq_len
    k, v = _repeat(forward, k), _repeat(forward, v)
    weights = ops.scale(tape, ops.matmul(tape, q, k, numel=scores))
    del q, k
    if arch.attention_softcap:
        weights = ops.scale(tape, ops.saves_output(tape, ops.scale(tape, weights)))
    if forward.mask is not None:
        weights = ops.elementwise(tape, [weights])
    if arch.model_type == "gpt2":  # softmax in the type of the scores
        weights = ops.saves_output(tape, weights)
    else:
        weights = ops.cast(tape, ops.saves_output(tape, weights, itemsize=4), forward.itemsize)
    weights = ops.dropout(tape, weights, arch.attention_dropout)
    out = ops.matmul(tape, weights, v, numel=forward.tokens * arch.q_width)
    del weights, v
    return ops.elementwise(tape, [out])  # transpose(1, 2).contiguous()
