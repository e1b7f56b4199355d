"""The parameters of a real model as the planner's own, for what it works out from sizes alone."""

from __future__ import annotations

from typing import Any

from planner.network.gptq import gptq_parts
from planner.network.quantized import quantized_parts
from planner.simulate.shaped.gptq import GptqLinear
from planner.simulate.shaped.packed import PackedLinear
from planner.tape.autograd import Parameter
from planner.training_case import Quantization
from planner.units import DTYPE_BYTES


class ModelWeights:
    """Parameters of a torch model, with the shapes that they have before any engine shards or packs them.

    Args:
        model: as its engine has cast it.
        how: the packing of a quantised base.
        dtype: of the model: "bf16", "fp16" or "fp32".
    """

    def __init__(self, model: Any, how: Quantization | None, dtype: str) -> None:
        self._how, self._itemsize = how, DTYPE_BYTES[dtype]
        self._parameters: list[Parameter] = []
        seen: set[int] = set()
        for name, module in model.named_modules():
            if isinstance(module, (PackedLinear, GptqLinear)):
                self._parameters.append(self._packed(f"{name}.weight", module))
            if isinstance(module, GptqLinear) and module.bias is not None:  # a buffer there
                shape = tuple(module.bias.shape)
                self._parameters.append(
                    Parameter(f"{name}.bias", shape, trainable=False, itemsize=self._itemsize)
                )
            for own, one in module.named_parameters(recurse=False):
                if id(one) in seen or (isinstance(module, PackedLinear) and own == "weight"):
                    continue
                seen.add(id(one))
                shape = tuple(getattr(one, "ds_shape", one.shape))
                self._parameters.append(
                    Parameter(
                        f"{name}.{own}", shape, trainable=one.requires_grad, itemsize=one.element_size()
                    )
                )

    def parameters(self) -> list[Parameter]:
        """In the order of registration."""
        return self._parameters

    def _packed(self, name: str, layer: PackedLinear | GptqLinear) -> Parameter:
        shape = layer.out_features, layer.in_features
        assert self._how is not None
        if isinstance(layer, GptqLinear):
            parts, unit = gptq_parts(shape, self._how), 1
        else:
            parts = quantized_parts(shape[0] * shape[1], shape[0], self._how)
            unit = layer.weight.element_size()
        return Parameter(name, shape, trainable=False, itemsize=self._itemsize, parts=parts, unit=unit)
