"""Multi-head latent attention of DeepSeek V2 and V3: queries and keys from low-rank projections.

Source: transformers 5.23 `DeepseekV3Attention`. Queries and values differ in width, which FlashAttention
does not take: cuDNN's kernel runs on Hopper, the memory-efficient one elsewhere (torch 2.11 `sdp_utils.cpp`).
"""

from __future__ import annotations

from planner.architecture.spec import Latent
from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Layer
from planner.network.rotary import rotate
from planner.network.views import split
from planner.tables import CPU, HOPPER, gpu
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor

FP32 = 4


def latent_projections(forward: Forward, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; only `rope` elements of each head turn, and keys share theirs."""
    latent, heads = forward.arch.latent, forward.arch.heads
    assert latent is not None
    kv = forward.linear(layer.linears["kv_a_proj_with_mqa"], x)
    q = _queries(forward, layer, x, latent)
    del x
    q_pass, q_turn = split(forward, q, (heads * latent.nope, heads * latent.rope))
    low, k_turn = split(forward, kv, (latent.kv_rank, latent.rope))
    del q, kv
    low = forward.norm(layer.norms["kv_a_layernorm"], low)
    q_turn, k_turn = rotate(forward, layer, q_turn, k_turn)
    q = _concatenated(forward, q_pass, q_turn)
    del q_pass, q_turn
    both = forward.linear(layer.linears["kv_b_proj"], low)
    del low
    k_pass, v = split(forward, both, (heads * latent.nope, heads * latent.value))
    del both
    return q, _concatenated(forward, k_pass, k_turn, numel=q.numel), v


def _queries(forward: Forward, layer: Layer, x: Tensor, latent: Latent) -> Tensor:
    if not latent.q_rank:
        return forward.linear(layer.linears["q_proj"], x)
    low = forward.norm(layer.norms["q_a_layernorm"], forward.linear(layer.linears["q_a_proj"], x))
    return forward.linear(layer.linears["q_b_proj"], low)


def _concatenated(forward: Forward, fixed: Tensor, turned: Tensor, *, numel: int = 0) -> Tensor:
    """Both parts of each head beside each other; the gradients are views, or sums over heads."""
    tape = forward.tape
    out = tape.tensor(numel or fixed.numel + turned.numel, fixed.itemsize)
    if not (tape.recording and (fixed.needs_grad or turned.needs_grad)):
        return out
    new, fixed_bytes, turned_bytes = tape.arena.new, fixed.nbytes, turned.nbytes

    def rule(gradient: Buffer) -> Gradients:
        if not numel:
            return [gradient, gradient]
        return [new(n, ops.ACTIVATION_GRADIENTS) for n in (fixed_bytes, turned_bytes)]

    return tape.attach(out, rule, [fixed, turned])


def uneven_attention(forward: Forward, bias: Buffer | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with values of another width than queries.

    cuDNN lays its output out as q is (`cudnn/MHA.cpp`); after torch.cat that is not what comes next: a copy.
    """
    out = _kernel(forward, bias, q, k, v)
    half, device = out.itemsize < FP32, forward.case.device
    cudnn = half and device != CPU and gpu(device).capability == HOPPER
    return ops.elementwise(forward.tape, [out]) if cudnn else out


def _kernel(forward: Forward, bias: Buffer | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Either kernel saves its inputs, its output and an fp32 sum a row."""
    tape, out = forward.tape, forward.tape.tensor(v.numel, v.itemsize)
    if not (tape.recording and (q.needs_grad or k.needs_grad or v.needs_grad)):
        return out
    sums = tape.arena.new(forward.tokens * forward.arch.heads * FP32, "activations")
    saves = (q.buffer, k.buffer, v.buffer, out.buffer, sums, *(() if bias is None else (bias,)))
    sizes = (q.nbytes, k.nbytes, v.nbytes)

    def rule(_gradient: Buffer) -> Gradients:
        return [tape.arena.new(n, ops.ACTIVATION_GRADIENTS) for n in sizes]

    return tape.attach(out, rule, [q, k, v], saves=saves)
