"""A mixture of experts: stacked weights, rows sorted by expert, grouped products.

Source: transformers 5.23 `integrations/moe.py: grouped_mm_experts_forward` (the default where torch has
`grouped_mm`) and each family's router.
"""

from __future__ import annotations

from planner.architecture.spec import Experts
from planner.memory.arena import Buffer
from planner.network.forward import Forward, fuses_cast
from planner.network.gated import gated
from planner.network.liger import activates
from planner.network.liger_experts import Chosen, fused_experts
from planner.network.modules import Layer, Module
from planner.network.views import split
from planner.tape import ops
from planner.tape.autograd import Gradients, Tensor

FP32 = 4
INDEX_BYTES = 8  # int64


def mixture(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Router, chosen experts, and the expert that sees every token."""
    experts, tape = forward.arch.experts, forward.tape
    assert experts is not None
    if not experts.shared_ffn:
        return _experts(forward, layer, x, experts)
    if not experts.shared_gate:
        chosen = _experts(forward, layer, x, experts)
        return ops.add(tape, chosen, gated(forward, layer, x, _shared_names(forward, "shared_experts")))
    shared = gated(forward, layer, x, _shared_names(forward, "shared_expert"))
    chosen = _experts(forward, layer, x, experts)
    weight = ops.saves_output(tape, forward.linear(layer.linears["shared_expert_gate"], x))
    weighed = _times_rows(forward, shared, weight, shared.itemsize)
    del shared, weight
    return ops.add(tape, chosen, weighed)


def _shared_names(forward: Forward, prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in forward.arch.mlp_names)


def _experts(forward: Forward, layer: Layer, x: Tensor, experts: Experts) -> Tensor:
    tape, rows = forward.tape, forward.tokens * experts.per_token
    weights, chosen = _route(forward, layer, x, experts)
    if activates(forward.case):
        up, down = (layer.linears[f"experts.{name}"] for name in ("gate_up_proj", "down_proj"))
        return fused_experts(forward, up, down, x, Chosen(experts.per_token, chosen, weights))
    order = [tape.arena.new(rows * INDEX_BYTES, "activations") for _ in range(2)]  # of rows, and of tokens
    sorted_rows = _pick(forward, x, rows * forward.arch.hidden, order[1])
    weights = _pick(forward, weights, rows, order[0])
    both = _grouped(forward, layer.linears["experts.gate_up_proj"], sorted_rows, rows * 2 * experts.ffn)
    del sorted_rows
    width = experts.per_token * experts.ffn
    gate, up = split(forward, both, (width, width))  # `chunk`
    del both
    product = ops.multiply(tape, ops.activation(tape, gate), up)
    del gate, up
    out = _grouped(forward, layer.linears["experts.down_proj"], product, rows * forward.arch.hidden)
    del product
    weighed = _times_rows(forward, out, weights, weights.itemsize)
    back = tape.arena.new(rows * INDEX_BYTES, "activations")
    weighed = _pick(forward, weighed, weighed.numel, back)
    summed = ops.rearrange(tape, weighed, numel=x.numel)
    del chosen, order, back, out, weights, weighed
    return ops.cast(tape, summed, x.itemsize)


def _route(forward: Forward, layer: Layer, x: Tensor, experts: Experts) -> tuple[Tensor, Buffer]:
    """Weights of the chosen experts, one a row, and the indices that choosing them saves."""
    tape, rows = forward.tape, forward.tokens * experts.per_token
    logits = (
        _wide_logits(forward, layer, x) if experts.wide_router else forward.linear(layer.linears["gate"], x)
    )
    if experts.wide_weights:
        logits = ops.cast(tape, logits, FP32)
    probabilities = ops.softmax(tape, logits, itemsize=FP32, fuses_cast=fuses_cast(forward.case))
    del logits
    chosen = tape.arena.new(rows * INDEX_BYTES, "activations")
    weights = _pick(forward, probabilities, rows, chosen)
    del probabilities
    if experts.normalised:  # divided in place by their sum: both are kept
        sums = tape.arena.new(forward.tokens * FP32, "activations")
        weights = ops.elementwise(tape, [weights], saves=(weights.buffer, sums), temporaries=1)
    return (weights if experts.wide_weights else ops.cast(tape, weights, x.itemsize)), chosen


def _wide_logits(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """DeepSeek routes in fp32: copies of the input and of the router's weight are kept."""
    tape, router = forward.tape, layer.linears["gate"]
    weight = tape.arena.new(router.weight.numel * FP32, "activations")
    logits = forward.linear(router, ops.cast(tape, x, FP32))
    if not (tape.recording and logits.needs_grad):
        return logits
    return tape.attach(logits.view(), lambda gradient: [gradient], [logits], saves=(weight,))


def _pick(forward: Forward, x: Tensor, numel: int, index: Buffer) -> Tensor:
    """Rows of x by an index, which is kept; the gradient goes back into zeros of x's size."""
    tape, out = forward.tape, forward.tape.tensor(numel, x.itemsize)
    if not (tape.recording and x.needs_grad):
        return out
    nbytes, new = x.nbytes, tape.arena.new
    return tape.attach(out, lambda _: [new(nbytes, ops.ACTIVATION_GRADIENTS)], [x], saves=(index,))


def _times_rows(forward: Forward, x: Tensor, weights: Tensor, itemsize: int) -> Tensor:
    """X times one number a row; the product is as wide as the wider of the two."""
    tape, out = forward.tape, forward.tape.tensor(x.numel, itemsize)
    if not (tape.recording and (x.needs_grad or weights.needs_grad)):
        return out
    new, wide, sizes = tape.arena.new, out.nbytes, (x.nbytes, weights.nbytes)
    needs = (x.needs_grad, weights.needs_grad)

    def rule(_gradient: Buffer) -> Gradients:
        product = new(wide, ops.ACTIVATION_GRADIENTS)
        grads: Gradients = [
            new(n, ops.ACTIVATION_GRADIENTS) if w else None for n, w in zip(sizes, needs, strict=True)
        ]
        del product
        return grads

    saves = tuple(t.buffer for t, other in ((x, needs[1]), (weights, needs[0])) if other)
    return tape.attach(out, rule, [x, weights], saves=saves)


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
