"""Normalisations as transformers writes them; each keeps something else for backward."""

from __future__ import annotations

from planner.architecture.spec import Norm
from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Module
from planner.tape import ops
from planner.tape.autograd import Parameter, Tensor

FP32 = 4


def normalise(forward: Forward, module: Module, x: Tensor) -> Tensor:
    """Run one normalisation, without the hooks around it."""
    style = forward.arch.norm
    trained = tuple(p for p in module.own() if p.trainable)
    if style is Norm.layer or (forward.case.fuses("rms_norm") and style is Norm.rms):
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
    root = tape.arena.new(_rows(forward, module, x) * FP32, "activations")  # rsqrt saves its result
    squared = ops.elementwise(tape, [wide], saves=(wide.buffer, root), temporaries=2)
    del squared
    normed = ops.elementwise(tape, [wide], saves=(wide.buffer, root), temporaries=1)
    del wide, root
    if style is Norm.rms:
        narrow = ops.cast(tape, normed, x.itemsize)
        del normed
        return _times_weight(forward, narrow, trained)
    scaled = _times_weight(forward, normed, trained)
    del normed
    return ops.cast(tape, scaled, x.itemsize)


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
    saves = (x.buffer,) if trained else ()
    return ops.elementwise(forward.tape, [x], saves=saves, temporaries=len(trained), trained=trained)
