"""The card a job is served on: named as a row of the GPU table, or described by its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from planner.tables import CPU, Gpu, gpu, gpus
from planner.units import GIB, MIB

SAME_CARD_MIB = 300  # drivers differ by so much in what they call the size of one card


@dataclass(frozen=True)
class Card:
    """Memory of one GPU (or of a machine, on the CPU). `name` is empty for a card that was only described."""

    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int] | None
    context_bytes: int = 0

    @property
    def total_mib(self) -> int:
        """As nvidia-smi shows it."""
        return self.total_bytes // MIB

    @property
    def on_cpu(self) -> bool:
        """Whether there is no GPU."""
        return self.name == CPU


def card_of(given: Any) -> Card:
    """Look a checked `gpu` value up: a name, or `total_mib` and perhaps `free_before_weights_gib`.

    Where the free memory is not given, the driver and the context take what they take on the cards of the
    table nearest in size. With a `name` beside them, they describe a card of that row.
    """
    if given == CPU:
        return Card(CPU, 0, 0, None)
    if isinstance(given, str):
        return _of_row(gpu(given))
    described = cast("Mapping[str, Any]", given)
    if described.get("name") is not None:
        return _like(_of_row(gpu(str(described["name"]))), described)
    total, free = int(described["total_mib"]), described.get("free_before_weights_gib")
    rows = sorted(gpus().values(), key=lambda row: abs(row.memory_gib * GIB / MIB - total))
    alike = [r for r in rows if abs(r.memory_gib * GIB / MIB - total) <= SAME_CARD_MIB] or rows[:1]
    own = total * MIB - int(max(row.memory_gib - row.usable_gib for row in alike) * GIB)
    same = len(alike) == 1 and abs(alike[0].memory_gib * GIB / MIB - total) <= SAME_CARD_MIB
    return Card(
        name=alike[0].name if same else "",
        total_bytes=total * MIB,
        free_bytes=max(0, own) if free is None else int(free * GIB),
        capability=_capability(alike[0]) if same else None,
        context_bytes=int(max(row.context_gib for row in alike) * GIB),
    )


def _like(card: Card, described: Mapping[str, Any]) -> Card:
    """A card of a row whose size or free memory differs from the table's."""
    size, free = described.get("total_mib"), described.get("free_before_weights_gib")
    total = card.total_bytes if size is None else int(size) * MIB
    beside = card.total_bytes - card.free_bytes
    return replace(
        card, total_bytes=total, free_bytes=max(0, total - beside) if free is None else int(free * GIB)
    )


def _capability(row: Gpu) -> tuple[int, int] | None:
    return row.capability if row.vendor == "nvidia" else None


def _of_row(row: Gpu) -> Card:
    total, context = int(row.memory_gib * GIB), int(row.context_gib * GIB)
    return Card(row.name, total, row.usable_bytes, _capability(row), context)
