"""Normalisations as transformers writes them; each keeps something else for backward."""

from __future__ import annotations

from planner.architecture.spec import Norm
from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.liger import normalised, normalises
from planner.network.modules import Module
from planner.tape import ops
from planner.tape.autograd import Gradients, Parameter, Tensor

FP32 = 4


def normalise(forward: Forward, module: Module, x: Tensor) -> Tensor:
    """Run one normalisation, without the hooks around it."""
    style = forward.arch.norm
    trained = tuple(p for p in module.own() if p.trainable)
    if normalises(forward.case, module.name):
        return normalised(forward, module, x)
    if style is Norm.layer:
        return ops.elementwise(
            forward.tape, [x], saves=(x.buffer, _statistics(forward, module, x)), trained=trained
        )
    if style is Norm.bare:
        wide = ops.cast(forward.tape, x, FP32)
        saves = (wide.buffer, _statistics(forward, module, x))
        return ops.cast(forward.tape, ops.elementwise(forward.tape, [wide], saves=saves), x.itemsize)
    if style is Norm.layer_fp32:
        return _layer_fp32(forward, module, x, trained)
    return _rms(forward, module, x, trained)


def _rms(forward: Forward, module: Module, x: Tensor, trained: tuple[Parameter, ...]) -> Tensor:
    """X * rsqrt(mean(x^2)) in fp32, then times the weight."""
    tape, style = forward.tape, forward.arch.norm
    wide = ops.cast(tape, x, FP32)
    normed = _times_root(forward, wide, _variance(forward, module, wide))
    del wide
    if style is Norm.rms:  # "hidden_states" names what was normed until the function returns
        return _times_weight(forward, ops.cast(tape, normed, x.itemsize), trained)
    scaled = _times_weight(forward, normed, trained)
    if style is Norm.rms_fp32:
        del normed
    return ops.cast(tape, scaled, x.itemsize)


def _variance(forward: Forward, module: Module, wide: Tensor) -> Tensor:
    """`x.pow(2).mean(-1, keepdim=True)`; backward spreads the mean's gradient and multiplies it by 2 x."""
    tape, nbytes, new = forward.tape, wide.nbytes, forward.tape.arena.new
    squared = new(nbytes, "activations")
    out = tape.tensor(_rows(forward, module, wide), FP32)
    del squared
    if not (tape.recording and wide.needs_grad):
        return out

    def rule(_gradient: Buffer) -> Gradients:
        made = [new(nbytes, ops.ACTIVATION_GRADIENTS) for _ in range(4)]  # divided, power, doubled, product
        return [made.pop()]

    return tape.attach(out, rule, [wide], saves=(wide.buffer,))


def _times_root(forward: Forward, wide: Tensor, variance: Tensor) -> Tensor:
    """`x * torch.rsqrt(variance + eps)`: both sides are kept."""
    tape, new = forward.tape, forward.tape.arena.new
    out = tape.tensor(wide.numel, FP32)
    if not (tape.recording and wide.needs_grad):
        return out
    wide_bytes, row_bytes = wide.nbytes, variance.nbytes

    def rule(_gradient: Buffer) -> Gradients:
        gradient, product = (new(wide_bytes, ops.ACTIVATION_GRADIENTS) for _ in range(2))
        summed = new(row_bytes, ops.ACTIVATION_GRADIENTS)
        del product
        return [gradient, summed]

    return tape.attach(out, rule, [wide, variance], saves=(wide.buffer, variance.buffer))


def _statistics(forward: Forward, module: Module, x: Tensor) -> Buffer:
    """Mean and reciprocal deviation of each row, which `native_layer_norm` saves in fp32."""
    return forward.tape.arena.new(2 * _rows(forward, module, x) * FP32, "activations")


def _rows(forward: Forward, module: Module, x: Tensor) -> int:
    """How many means are taken."""
    per_head = forward.arch.qk_norm_heads and module.name in ("q_norm", "k_norm")
    width = module.weight.numel or forward.arch.hidden  # a norm may have no weights
    return x.numel // (forward.arch.head_dim if per_head else width)


def _layer_fp32(forward: Forward, module: Module, x: Tensor, trained: tuple[Parameter, ...]) -> Tensor:
    """Cohere: mean, variance and scale spelt out in fp32; both differences from the mean are kept."""
    tape = forward.tape
    wide = ops.cast(tape, x, FP32)
    root = tape.arena.new(_rows(forward, module, x) * FP32, "activations")
    first = ops.elementwise(tape, [wide])
    squared = ops.elementwise(tape, [first], saves=(first.buffer, root), temporaries=2)
    del squared, first
    second = ops.elementwise(tape, [wide])
    del wide
    normed = ops.elementwise(tape, [second], saves=(second.buffer, root), temporaries=1)
    del second, root
    scaled = _times_weight(forward, normed, trained)
    del normed
    return ops.cast(tape, scaled, x.itemsize)


def _times_weight(forward: Forward, x: Tensor, trained: tuple[Parameter, ...]) -> Tensor:
    """The weight times what was normed; Gemma writes it the other way round, and so do its gradients come.

    Autograd sums the weight's gradient over rows when both products are there (`validate_outputs`).
    """
    tape, new, nbytes = forward.tape, forward.tape.arena.new, x.nbytes
    if trained:
        tape.reaches_save()
    out = tape.tensor(x.numel, x.itemsize)
    if not (tape.recording and (trained or x.needs_grad)):
        return out
    in_bytes, numel = nbytes if x.needs_grad else 0, x.numel
    weight_last = forward.arch.norm is Norm.rms_fp32
    kept = [x.buffer] if trained else []
    once = tape.recomputes and not forward.case.checkpointing.reenters

    def rule(_gradient: Buffer) -> Gradients:
        product, grad_in = (new(n, ops.ACTIVATION_GRADIENTS) for n in (nbytes if trained else 0, in_bytes))
        if weight_last and trained and in_bytes:
            product, grad_in = grad_in, product
        grads: Gradients = [grad_in if in_bytes else None]
        if once:  # what is made again is let go as soon as it was read
            kept.clear()
        for parameter in trained:
            grads.append(new(parameter.numel * parameter.itemsize, ops.GRADIENTS))
            tape.sums_columns(numel // parameter.numel, parameter.numel)
        del product
        return grads

    return tape.attach(out, rule, [x, *trained], keeps=bool(trained))
