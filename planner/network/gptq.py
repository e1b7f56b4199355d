"""A GPTQ base: how its matrices are stored and multiplied.

Sources: gptqmodel at commit f4c327a (August 2026), `nn_modules/qlinear/__init__.py`
(`_register_gptq_buffers`, `dequantize_weight`), `torch.py` (`TorchLinear`) and `tritonv2.py`: while a model
trains, the Triton kernel hands over to the one in torch, which unpacks the whole matrix and multiplies by it,
so autograd saves the unpacked matrix. Assumed: unpacking is compiled (`optimize` asks for inductor) and makes
nothing but its result. Scales stay fp16 when a model is loaded in another type (seen with GPTQModel 7.5.0),
so the result is fp16 too and is cast.
"""

from __future__ import annotations

from planner.memory.arena import Buffer
from planner.tape import ops
from planner.tape.autograd import Gradients, Parameter, Tape, Tensor
from planner.training_case import Quantization
from planner.units import ceil_div

WORD_BITS, WORD_BYTES = 32, 4
SCALE_BYTES = 2
UNPACKED = "unpacked weights"


def gptq_parts(shape: tuple[int, ...], quantization: Quantization) -> tuple[int, ...]:
    """Bytes of `qweight`, `qzeros`, `scales` and `g_idx` of one matrix [out, in].

    >>> gptq_parts((4096, 4096), Quantization(kind="gptq"))
    (8388608, 65536, 262144, 16384)
    """
    outputs, inputs = shape
    group = inputs if quantization.group_size == -1 else quantization.group_size
    groups, bits = ceil_div(inputs, group), quantization.bits
    return (
        ceil_div(inputs * bits, WORD_BITS) * outputs * WORD_BYTES,
        groups * ceil_div(outputs * bits, WORD_BITS) * WORD_BYTES,
        groups * outputs * SCALE_BYTES,
        inputs * WORD_BYTES,
    )


def gptq_linear(tape: Tape, x: Tensor, weight: Parameter, *, rows: int, casts: bool) -> Tensor:
    """A product with a matrix that is unpacked anew and saved for the gradient of the input.

    Args:
        tape: where it is recorded.
        x: what is multiplied.
        weight: the packed matrix.
        rows: of x.
        casts: whether the model has another type than fp16.
    """
    unpacked = tape.arena.new(weight.numel * SCALE_BYTES, UNPACKED)
    if casts:
        unpacked = tape.arena.new(weight.numel * x.itemsize, UNPACKED)
    out = tape.tensor(rows * weight.shape[0], x.itemsize)
    tape.multiplies()
    if not (tape.recording and x.needs_grad):
        return out
    in_bytes, new = x.nbytes, tape.arena.new

    def rule(_gradient: Buffer) -> Gradients:
        tape.multiplies(backward=True)
        return [new(in_bytes, ops.ACTIVATION_GRADIENTS)]

    return tape.attach(out, rule, [x], saves=(unpacked,))
