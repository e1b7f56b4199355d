"""Bytes of bitsandbytes weights. Source: bitsandbytes 0.50 `functional.quantize_4bit`, `nn.Linear8bitLt`."""

from __future__ import annotations

from planner.training_case import Quantization
from planner.units import ceil_div

BLOCK = 64  # weights that share one scale
SCALE_BLOCK = 256  # scales that share one scale under double quantisation


def quantized_parts(numel: int, rows: int, quantization: Quantization) -> tuple[int, ...]:
    """Bytes of the tensors that store one matrix: in the order in which they are made.

    4 bit: half a byte a weight and an fp32 scale per block of 64; with double quantisation the scales
    take one byte each, plus an fp32 scale per 256 of them. 8 bit: one byte a weight, an fp32 scale a row.

    >>> round(sum(quantized_parts(1 << 20, 1024, Quantization(4, "nf4", double_quant=True))) / (1 << 20), 5)
    0.51587
    """
    if quantization.bits == 8:
        return numel, 4 * rows
    blocks = ceil_div(numel, BLOCK)
    if quantization.double_quant:
        return blocks, ceil_div(numel, 2), 4 * ceil_div(blocks, SCALE_BLOCK)
    return 4 * blocks, ceil_div(numel, 2)
