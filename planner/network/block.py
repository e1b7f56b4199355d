"""One transformer block: norms, attention, feed-forward part and the residual sums around them."""

from __future__ import annotations

from planner.architecture.spec import Block
from planner.network.attention import attention
from planner.network.feed_forward import feed_forward
from planner.network.forward import Forward
from planner.network.modules import Layer
from planner.tape import ops
from planner.tape.autograd import Tensor


def block(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Run one block; local names live as long as in transformers."""
    if forward.arch.block in (Block.parallel, Block.parallel_two_norms):
        return _parallel(forward, layer, x)
    return _sequential(forward, layer, x)


def _sequential(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    style = forward.arch.block
    first, second = "input_layernorm", "post_attention_layernorm"
    if style is Block.sandwich:
        second = "pre_feedforward_layernorm"
    residual = x
    if style is not Block.post:
        x = forward.norm(layer.norms[first], x)
    x = attention(forward, layer, x)
    if style is not Block.sequential:
        x = forward.norm(layer.norms["post_attention_layernorm"], x)
    x = _joined(forward, residual, x)
    residual = x
    if style is not Block.post:
        x = forward.norm(layer.norms[second], x)
    x = ops.dropout(forward.tape, feed_forward(forward, layer, x), forward.arch.mlp_dropout)
    if style is not Block.sequential:
        x = forward.norm(layer.norms["post_feedforward_layernorm"], x)
    return _joined(forward, residual, x)


def _joined(forward: Forward, residual: Tensor, x: Tensor) -> Tensor:
    if forward.arch.scaled_residual:
        x = ops.scale(forward.tape, x)
    x = ops.dropout(forward.tape, x, forward.arch.hidden_dropout)
    return ops.add(forward.tape, residual, x)


def _parallel(forward: Forward, layer: Layer, x: Tensor) -> Tensor:
    """Attention and feed-forward part see the same input."""
    tape, rate = forward.tape, forward.arch.hidden_dropout
    normed = forward.norm(layer.norms["input_layernorm"], x)
    two = forward.arch.block is Block.parallel_two_norms
    attended = ops.dropout(tape, attention(forward, layer, normed), rate)
    if two:
        normed = forward.norm(layer.norms["post_attention_layernorm"], x)
    fed = ops.dropout(tape, feed_forward(forward, layer, normed), rate or forward.arch.mlp_dropout)
    del normed
    both = ops.add(tape, attended, fed)
    del attended, fed
    return ops.add(tape, both, x)
