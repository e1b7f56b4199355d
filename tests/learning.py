"""What a model would learn from batches, to compare one way of making them with another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def loss_and_gradients(
    model: Any, batches: Iterable[Mapping[str, Any]], targets: int
) -> tuple[float, dict[str, Any]]:
    """Return the loss over `targets` tokens, and the gradient of each weight by name."""
    model.zero_grad()
    total = 0.0
    for batch in batches:
        moved = {name: one.to(model.device) if hasattr(one, "to") else one for name, one in batch.items()}
        loss = model(**moved, num_items_in_batch=targets, use_cache=False).loss
        loss.backward()
        total += float(loss.detach())
    return total, {name: weight.grad.clone() for name, weight in model.named_parameters()}
