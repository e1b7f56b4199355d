"""The feed-forward part of a block, one function per way of writing it."""

from __future__ import annotations

from planner.architecture.spec import Mlp
from planner.memory.arena import Buffer
from planner.network.attention import split
from planner.network.forward import Forward
from planner.network.modules import Layer, Module
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor


def feed_forward(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Run the feed-forward part of a block."""
    if forward.arch.mlp is Mlp.gated and forward.case.liger:
        return _liger_gated(forward, layer, x)
    return _WAYS[forward.arch.mlp](forward, layer, x)


def _gated(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """down(act(gate(x)) * up(x))."""
    tape, linears = forward.tape, layer.linears
    act = ops.activation(tape, forward.linear(linears["gate_proj"], x))
    up = forward.linear(linears["up_proj"], x)
    return forward.linear(linears["down_proj"], ops.multiply(tape, act, up))


def _fused_gated(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Phi 3: one projection for gate and up, cut by `chunk`."""
    tape, ffn = forward.tape, forward.arch.ffn
    both = forward.linear(layer.linears["gate_up_proj"], x)
    gate, up = split(forward, both, (ffn, ffn))
    del both
    act = ops.activation(tape, gate)
    del gate
    return forward.linear(layer.linears["down_proj"], ops.multiply(tape, up, act))


def _liger_gated(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """LigerSiLUMulFunction saves gate and up, and writes their gradients over them."""
    gate = forward.linear(layer.linears["gate_proj"], x)
    up = forward.linear(layer.linears["up_proj"], x)
    product = forward.tape.tensor(gate.numel, gate.itemsize)
    if forward.tape.recording and gate.needs_grad:
        overwritten = [gate.buffer, up.buffer]

        def rule(_gradient: Buffer) -> Gradients:
            return [overwritten.pop(0), overwritten.pop(0)]

        forward.tape.attach(product, rule, [gate, up])
    del gate, up
    return forward.linear(layer.linears["down_proj"], product)


def _relu(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """OPT: fc2(relu(fc1(x)))."""
    hidden = ops.saves_output(forward.tape, forward.linear(layer.linears["fc1"], x))
    return forward.linear(layer.linears["fc2"], hidden)


def _gelu_new(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """GPT-2: 0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), operator by operator."""
    tape = forward.tape
    x = forward.linear(layer.linears["c_fc"], x)
    half = ops.scale(tape, x)
    cubed = ops.scale(tape, ops.elementwise(tape, [x], saves=(x.buffer,), temporaries=2))
    inner = ops.add(tape, x, cubed)
    del cubed, x
    tanh = ops.saves_output(tape, ops.scale(tape, inner))
    del inner
    product = ops.multiply(tape, half, ops.scale(tape, tanh))
    del half, tanh
    return forward.linear(layer.linears["mlp.c_proj"], product)


def _experts(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Mixtral: each token passes through `experts_per_token` gated networks.

    Source: transformers 5 `integrations/moe.py`; stacked expert weights, rows sorted by expert.
    """
    tape, arch = forward.tape, forward.arch
    probabilities = ops.saves_output(tape, forward.linear(layer.linears["gate"], x), itemsize=4)
    rows = forward.tokens * arch.experts_per_token
    sorted_rows = ops.rearrange(tape, x, numel=rows * arch.hidden)
    both = _grouped(forward, layer.linears["experts.gate_up_proj"], sorted_rows, rows * 2 * arch.ffn)
    del sorted_rows
    gate, up = (Tensor(both.buffer, rows * arch.ffn, both.itemsize, both.node) for _ in range(2))
    act = ops.activation(tape, gate)
    product = ops.multiply(tape, act, up)
    del both, gate, act, up
    out = _grouped(forward, layer.linears["experts.down_proj"], product, rows * arch.hidden)
    del product, probabilities
    weighted = ops.elementwise(tape, [out], saves=(out.buffer,))
    del out
    return ops.rearrange(tape, weighted, numel=x.numel)


def _grouped(forward: Forward, module: Module, x: Tensor, numel: int) -> Tensor:
    """A grouped matrix product over stacked expert weights."""
    tape, weight = forward.tape, module.weight

    def body(inner: Tensor) -> Tensor:
        out = tape.tensor(numel, inner.itemsize)
        if not (tape.recording and (inner.needs_grad or weight.trainable)):
            return out
        in_bytes = inner.nbytes if inner.needs_grad else 0
        grad_bytes = weight.numel * weight.itemsize if weight.trainable else 0

        def rule(_gradient: Buffer) -> Gradients:
            grad_in = tape.arena.new(in_bytes, ops.ACTIVATION_GRADIENTS) if in_bytes else None
            grad = tape.arena.new(grad_bytes, ops.GRADIENTS) if grad_bytes else None
            return [grad_in, grad]

        saves = (inner.buffer,) if weight.trainable else ()
        return tape.attach(out, rule, [inner, weight if weight.trainable else None], saves=saves)

    return forward.call(module, x, body)


_WAYS = {
    Mlp.gated: _gated,
    Mlp.fused_gated: _fused_gated,
    Mlp.relu: _relu,
    Mlp.gelu_new: _gelu_new,
    Mlp.moe: _experts,
}
