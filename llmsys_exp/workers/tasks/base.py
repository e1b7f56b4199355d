"""What the training loop asks of a task: model, examples, loss, and how the result is measured and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Sizes:
    """How much some examples are."""

    targets: int
    """What the loss is a mean over: answer tokens, images."""
    tokens: int
    """What throughput is told in: tokens without padding, images."""
    pairs: int = 0
    """Squared lengths of what attends to itself, summed up, for counting FLOPs; 0 without attention."""


class Task(Protocol):
    """A model with its data. Every rank holds one, with the same examples in the same order."""

    unit: str
    """What `tokens` counts, in the singular: token, image."""
    examples: Sequence[Any]
    heldout: Sequence[Any]
    fingerprint: str
    """Changes when the training examples do."""

    def build(self) -> Any:
        """Return the model, with the right weights trainable, as the engine takes it."""
        ...

    def collate(self, examples: Sequence[Any]) -> dict[str, Any]:
        """Return a micro-batch as tensors on the host."""
        ...

    def sizes(self, numbers: Sequence[int]) -> Sizes:
        """Return how much the training examples with these numbers are, without making them."""
        ...

    def loss(self, engine: Any, batch: Mapping[str, Any], targets: float) -> Any:
        """Run forward and return the sum of the micro-batch's losses over `targets`."""
        ...

    def evaluate(self, model: Any, name: str) -> dict[str, Any] | None:
        """Return figures on the held-out rows, `loss` among them; None without such rows."""
        ...

    def save(self, model: Any) -> None:
        """Write the result; every rank must call this, as shards are gathered."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what the summary says of the data."""
        ...
