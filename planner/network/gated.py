"""down(act(gate(x)) * up(x)), stock or with Liger's kernel."""

from __future__ import annotations

from planner.network.forward import Forward
from planner.network.liger import activated, activates
from planner.network.modules import Layer
from planner.tape import ops
from planner.tape.autograd import Tensor


def gated(forward: Forward, layer: Layer, x: Tensor, names: tuple[str, ...]) -> Tensor:
    """A gated feed-forward part whose three modules have these names."""
    gate_name, up_name, down_name = names
    linears = layer.linears
    if activates(forward.case):
        return _liger(forward, layer, x, names)
    act = forward.within(
        forward.linear(linears[gate_name], x), lambda gate: ops.activation(forward.tape, gate)
    )
    product = ops.multiply(forward.tape, act, forward.linear(linears[up_name], x))
    del act
    return forward.linear(linears[down_name], product)


def _liger(forward: Forward, layer: Layer, x: Tensor, names: tuple[str, ...]) -> Tensor:
    gate = forward.linear(layer.linears[names[0]], x)
    up = forward.linear(layer.linears[names[1]], x)
    product = activated(forward, gate, up)
    del gate, up
    return forward.linear(layer.linears[names[2]], product)
