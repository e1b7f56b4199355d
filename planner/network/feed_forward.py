"""The feed-forward part of a block, one function per way of writing it."""

from __future__ import annotations

from functools import partial

from planner.architecture.spec import Mlp
from planner.network.forward import Forward
from planner.network.gated import gated
from planner.network.liger import activated_halves, activates
from planner.network.modules import Layer
from planner.network.moe import mixture
from planner.network.views import split
from planner.tape import ops
from planner.tape.autograd import Tensor


def feed_forward(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Run the feed-forward part of a block, which OPT's code does not give a module."""
    if forward.arch.model_type == "opt":
        return _feed_forward(forward, layer, x)
    return forward.within(x, partial(_feed_forward, forward, layer))


def _feed_forward(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    style, names = forward.arch.mlp, forward.arch.mlp_names
    if style is Mlp.moe and "gate" in layer.linears:
        return mixture(forward, layer, x)
    if style in (Mlp.gated, Mlp.moe):
        return gated(forward, layer, x, names)
    if style is Mlp.fused_gated:
        return _fused_gated(forward, layer, x)
    hidden = forward.within(forward.linear(layer.linears[names[0]], x), partial(_ACTIVATIONS[style], forward))
    return forward.linear(layer.linears[names[1]], hidden)


def _fused_gated(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Phi 3 and GLM: one projection for gate and up, cut by `chunk`."""
    tape, ffn = forward.tape, forward.arch.ffn
    both = forward.linear(layer.linears["gate_up_proj"], x)
    if activates(forward.case):  # names hold the whole until the last product is made
        return forward.linear(layer.linears["down_proj"], activated_halves(forward, both))
    gate, up = split(forward, both, (ffn, ffn))
    del both
    act = forward.within(gate, partial(ops.activation, tape))
    del gate
    return forward.linear(layer.linears["down_proj"], ops.multiply(tape, up, act))


def _relu(forward: Forward, x: Tensor) -> Tensor:
    """OPT: saves its output."""
    return ops.saves_output(forward.tape, x)


def _gelu(forward: Forward, x: Tensor) -> Tensor:
    """One ATen operator."""
    return ops.activation(forward.tape, x)


def _gelu_new(forward: Forward, x: Tensor) -> Tensor:
    """GPT-2: 0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), operator by operator."""
    tape = forward.tape
    half = ops.scale(tape, x)
    cubed = ops.scale(tape, ops.elementwise(tape, [x], saves=(x.buffer,), temporaries=2))
    inner = ops.add(tape, x, cubed)
    del cubed, x
    tanh = ops.saves_output(tape, ops.scale(tape, inner))
    del inner
    return ops.multiply(tape, half, ops.scale(tape, tanh))


def _gelu_bloom(forward: Forward, x: Tensor) -> Tensor:
    """Bloom's GeLUFunction: forward and backward spelt out, only the input saved."""
    scratch = [forward.tape.arena.new(x.nbytes, "activations") for _ in range(2)]
    out = ops.elementwise(forward.tape, [x], saves=(x.buffer,), temporaries=4)
    del scratch
    return out


_ACTIVATIONS = {Mlp.relu: _relu, Mlp.gelu: _gelu, Mlp.gelu_new: _gelu_new, Mlp.gelu_bloom: _gelu_bloom}
