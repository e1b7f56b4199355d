"""bitsandbytes' linear layers on shapes: packed weights, and products that make them whole each time.

Source: bitsandbytes 0.50 `nn/modules.py`, `autograd/_functions.py`, `functional.py: quantize_4bit`,
`backends/cuda/ops.py`. The kernel that multiplies packed weights as they are, which bitsandbytes takes for
few rows on some GPUs, is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from planner.network.quantized import BLOCK, SCALE_BLOCK
from planner.simulate.recorder import GPU
from planner.simulate.shaped.gptq import GptqLinear
from planner.training_case import Quantization
from planner.units import ceil_div

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LEVELS = 16
"""Values that 4 bits stand for; each layer has a table of them."""


class PackedLinear(torch.nn.Linear):
    """What both kinds have in common.

    Args:
        layer: the layer whose weight is packed; the Conv1D of GPT-2 is one that has it transposed.
    """

    clones = False
    """Whether the result is copied, as peft does around 4 bit (`tuners/lora/bnb.py`)."""

    def __init__(self, layer: Any) -> None:
        torch.nn.Module.__init__(self)  # that of Linear would make a weight
        shape = layer.weight.shape
        self.out_features, self.in_features = shape if isinstance(layer, torch.nn.Linear) else shape[::-1]
        self.bias = layer.bias

    def _keep(self, packed: torch.Tensor) -> None:
        self.weight = torch.nn.Parameter(packed, requires_grad=False)

    def unpacked(self) -> torch.Tensor:
        """The whole weight, as peft asks for it (`utils/integrations.py: dequantize_bnb_weight`)."""
        raise NotImplementedError

    def _narrow_bias(self, dtype: torch.dtype) -> None:
        if self.bias is not None and self.bias.dtype != dtype:
            self.bias.data = self.bias.data.to(dtype)


class Linear4bit(PackedLinear):
    """Half a byte a weight and a scale for each block; the scales may be packed once more."""

    def __init__(self, layer: Any, how: Quantization, dtype: torch.dtype) -> None:
        super().__init__(layer)
        self._how, self._dtype = how, dtype
        self._pack(torch.empty(layer.weight.shape, dtype=layer.weight.dtype, device=GPU))

    def _pack(self, whole: torch.Tensor) -> None:
        """Pack into elements of the model's type, as the worker asks: ZeRO-3 shards no others."""
        blocks = ceil_div(whole.numel(), BLOCK)
        scales = _new(blocks, torch.float32)
        self._keep(_new((ceil_div(whole.numel(), 2 * self._dtype.itemsize), 1), self._dtype))
        self._levels = _new(LEVELS, torch.float32)
        if self._how.double_quant:
            self._offset = scales.mean()
            scales = self._pack_scales(scales - self._offset)
        self._scales = scales

    def _pack_scales(self, scales: torch.Tensor) -> torch.Tensor:
        self._outer = _new(ceil_div(scales.numel(), SCALE_BLOCK), torch.float32)
        return _new(scales.numel(), torch.uint8)

    def whole(self, dtype: torch.dtype, *, forward: bool) -> torch.Tensor:
        """The weight in this type."""
        if self._how.double_quant:
            scales = torch.empty_like(self._scales, dtype=torch.float32)
            scales = scales + self._offset if forward else scales.add_(self._offset)
        first = DTYPES[self._how.unpacked_dtype] if self._how.unpacked_dtype else dtype
        return _new((self.out_features, self.in_features), first).to(dtype)

    def unpacked(self) -> torch.Tensor:
        """In the type that was packed."""
        return self.whole(self._dtype, forward=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in the type of the model."""
        given = x.dtype
        x = x.to(self._dtype)
        self._narrow_bias(x.dtype)
        out = _Product4bit.apply(x, self, self._how.keeps_inputs).to(given)
        return out.clone() if self.clones else out


class _Product4bit(torch.autograd.Function):
    """`MatMul4Bit`: the input is an attribute of the graph before 0.43.2; the packed weight always is one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Linear4bit, keeps_input: bool) -> torch.Tensor:
        ctx.layer = layer
        # at stage 3 it is the gathered one, which lives on when DeepSpeed lets it go
        ctx.kept = (layer.weight.view(-1, 1), x if keeps_input else None) if ctx.needs_input_grad[0] else None
        return F.linear(x, layer.whole(x.dtype, forward=True), layer.bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.matmul(gradient, ctx.layer.whole(gradient.dtype, forward=False)), None, None


class Linear8bit(PackedLinear):
    """A byte a weight and a scale for each row; inputs are packed too."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        shape = (self.out_features, self.in_features)
        self.packed, self.scales = _rows_packed(_new(shape, torch.float16))
        self._keep(self.packed)

    def unpacked(self) -> torch.Tensor:
        """In fp32: times its scale, times a constant."""
        return self.packed * self.scales.view(-1, 1) * (1.0 / 127)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in 8 bit by what was packed, which takes the place of what DeepSpeed gathered."""
        self._narrow_bias(x.dtype)
        out = _Product8bit.apply(x, self)
        self.weight.data = self.packed
        return out


class _Product8bit(torch.autograd.Function):
    """`MatMul8bitLt`: the input is an attribute of the graph, which no hook of a checkpoint sees."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Linear8bit) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        packed, scales = _rows_packed(rows.to(torch.float16))
        out = _scaled_product(packed, layer, x.dtype)
        del packed, scales
        ctx.layer, ctx.shape, ctx.dtype = layer, x.shape, x.dtype
        ctx.kept = rows if ctx.needs_input_grad[0] else None
        return out.reshape(*x.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        whole = ctx.layer.packed.to(ctx.dtype, copy=True).mul_(ctx.layer.scales.unsqueeze(1).mul(1.0 / 127))
        return torch.matmul(gradient.to(ctx.dtype), whole).view(ctx.shape), None


def _scaled_product(packed: torch.Tensor, layer: Linear8bit, dtype: torch.dtype) -> torch.Tensor:
    """Sums in int32, then fp16, then the type that is wanted."""
    sums = _new((packed.shape[0], layer.out_features), torch.int32)
    out = torch.empty_like(sums, dtype=torch.float16)
    if layer.bias is not None and layer.bias.dtype != torch.float16:
        out.add_(layer.bias)
    return out.to(dtype)


def _rows_packed(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`int8_vectorwise_quant`: a scale for each row, and the rows in int8."""
    scales = _new(rows.shape[0], torch.float32)
    return torch.empty_like(rows, dtype=torch.int8), scales


def _new(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=GPU)


def pack(model: Any, how: Quantization, dtype: torch.dtype) -> None:
    """Move a model from main memory to the GPU, with linear layers packed one at a time on the way.

    GPTQ's come packed from their files.

    Args:
        model: whose weights no allocator has seen yet.
        how: the packing; the output layer stays whole unless it says otherwise.
        dtype: of the model.
    """
    from transformers.pytorch_utils import Conv1D

    head = None if how.head else model.get_output_embeddings()
    moved: set[int] = set()
    for name, module in list(model.named_modules()):
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, _packed(module, how, dtype, moved))
        else:
            _move(module, moved)
    if how.prepare_for_kbit_training:
        _widen(model, narrow=how.kind == "gptq")


def _packed(module: Any, how: Quantization, dtype: torch.dtype, moved: set[int]) -> torch.nn.Module:
    if how.kind == "gptq":
        return GptqLinear(module, how)
    new = Linear4bit(module, how, dtype) if how.bits == 4 else Linear8bit(module)
    _move(new, moved | {id(new.weight)})
    return new


def _move(module: torch.nn.Module, moved: set[int]) -> None:
    for parameter in module.parameters(recurse=False):
        if id(parameter) not in moved:
            parameter.data = torch.empty_like(parameter)
            moved.add(id(parameter))
    for name, buffer in module.named_buffers(recurse=False):
        setattr(module, name, torch.empty_like(buffer))


def _widen(model: Any, *, narrow: bool) -> None:
    """As peft's `prepare_model_for_kbit_training`: nothing is trained, what is not packed becomes fp32.

    Args:
        model: the model.
        narrow: leave the types as they are, as it does with a GPTQ base.
    """
    packed = {id(module.weight) for module in model.modules() if isinstance(module, PackedLinear)}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if narrow or id(parameter) in packed:
            continue
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


@contextmanager
def unpacking() -> Iterator[None]:
    """Let peft's DoRA see whole weights, which it adds its adapters to."""
    dora = importlib.import_module("peft.tuners.lora.dora")
    plain = dora.dequantize_module_weight

    def whole(module: Any) -> Any:
        return module.unpacked() if isinstance(module, PackedLinear) else plain(module)

    with mock.patch.object(dora, "dequantize_module_weight", whole):
        yield
