"""The parameters of a real model as the planner's own, for what it works out from sizes alone."""

from __future__ import annotations

from typing import Any

from planner.network.quantized import quantized_parts
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
        packed = {id(one.weight): one for one in model.modules() if isinstance(one, PackedLinear)}
        self._parameters = [
            _packed(name, packed[id(one)], how, DTYPE_BYTES[dtype])
            if how is not None and id(one) in packed
            else Parameter(
                name,
                tuple(getattr(one, "ds_shape", one.shape)),
                trainable=one.requires_grad,
                itemsize=one.element_size(),
            )
            for name, one in model.named_parameters()
        ]

    def parameters(self) -> list[Parameter]:
        """In the order of registration."""
        return self._parameters


def _packed(name: str, layer: PackedLinear, how: Quantization, itemsize: int) -> Parameter:
    shape = layer.out_features, layer.in_features
    parts = quantized_parts(shape[0] * shape[1], shape[0], how)
    return Parameter(name, shape, trainable=False, itemsize=itemsize, parts=parts)
