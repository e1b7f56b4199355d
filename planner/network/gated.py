"""down(act(gate(x)) * up(x)), stock or with Liger's kernel."""

from __future__ import annotations

from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Layer
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor


def gated(forward: Forward, layer: Layer, x: Tensor, names: tuple[str, ...]) -> Tensor:
    """A gated feed-forward part whose three modules have these names."""
    gate_name, up_name, down_name = names
    linears = layer.linears
    if forward.case.fuses("swiglu"):
        return _liger(forward, layer, x, names)
    act = ops.activation(forward.tape, forward.linear(linears[gate_name], x))
    up = forward.linear(linears[up_name], x)
    return forward.linear(linears[down_name], ops.multiply(forward.tape, act, up))


def _liger(forward: Forward, layer: Layer, x: Tensor, names: tuple[str, ...]) -> Tensor:
    """LigerSiLUMulFunction saves gate and up, and writes their gradients over them."""
    gate = forward.linear(layer.linears[names[0]], x)
    up = forward.linear(layer.linears[names[1]], x)
    product = forward.tape.tensor(gate.numel, gate.itemsize)
    if forward.tape.recording and gate.needs_grad:
        overwritten = [gate.buffer, up.buffer]

        def rule(_gradient: Buffer) -> Gradients:
            return [overwritten.pop(0), overwritten.pop(0)]

        forward.tape.attach(product, rule, [gate, up])
    del gate, up
    return forward.linear(layer.linears[names[2]], product)
