"""The parameters of a real model as the planner's own, for what it works out from sizes alone."""

from __future__ import annotations

from typing import Any

from planner.tape.autograd import Parameter


class ModelWeights:
    """Parameters of a torch model, with the shapes that they have before any engine shards them."""

    def __init__(self, model: Any) -> None:
        self._parameters = [
            Parameter(
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
