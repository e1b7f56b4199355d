"""What the training loop asks of a task: model, examples, loss, and how the result is measured and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Task(Protocol):
    """A model with its data. Every rank holds one, with the same examples in the same order."""

    unit: str
    """What `tokens` counts, in the singular: token, image."""
    examples: Sequence[Any]
    heldout: Sequence[Any]

    def build(self) -> Any:
        """Return the model, with the right weights trainable, as the engine takes it."""
        ...

    def collate(self, examples: Sequence[Any]) -> dict[str, Any]:
        """Return a micro-batch as tensors on the host."""
        ...

    def targets(self, examples: Sequence[Any]) -> int:
        """Count what the loss is a mean over: answer tokens, images."""
        ...

    def tokens(self, examples: Sequence[Any]) -> int:
        """Count what throughput is told in: tokens without padding, images."""
        ...

    def pairs(self, examples: Sequence[Any]) -> int:
        """Sum the squared lengths of what attends to itself, for counting FLOPs; 0 without attention."""
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
