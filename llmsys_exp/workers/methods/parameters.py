"""The parameters of a model: which are trained, and how many."""

from __future__ import annotations

from typing import Any


def trainable_parameters(model: Any) -> list[Any]:
    """Return the parameters that training changes."""
    return [one for one in model.parameters() if one.requires_grad]


def parameter_counts(model: Any) -> dict[str, int]:
    """Count trainable and all elements; under ZeRO-3 as if whole."""
    sizes = [(getattr(one, "ds_numel", one.numel()), one.requires_grad) for one in model.parameters()]
    return {
        "trainable_parameters": sum(size for size, trained in sizes if trained),
        "total_parameters": sum(size for size, _ in sizes),
    }
