"""From rows of runs to entries: medians of what each device did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsys_exp.calibrate.device import Device
from llmsys_exp.calibrate.entry import Entry, Figure, figure_of
from llmsys_exp.calibrate.rows import NotUsed, Row, read_row
from llmsys_exp.errors import UserError

OTHERS_GIB = 0.5
"""A run that began with so much more in use than the others of its device shared the card with somebody."""
ONE, SEVERAL = "one rank", "several ranks"


@dataclass(frozen=True)
class Found:
    """What runs came to."""

    entries: dict[Device, Entry]
    left_out: tuple[tuple[str, str], ...]
    """Run, and why it does not count."""
    no_speed: tuple[tuple[str, str], ...]
    """Run whose memory counts and whose speed does not, and why."""


def read_runs(files: Sequence[Path], date: str) -> Found:
    """Read manifests, and take the medians of each device.

    Args:
        files: manifests.
        date: of the calibration.
    """
    rows: list[Row] = []
    left_out: list[tuple[str, str]] = []
    for file in files:
        try:
            rows.append(read_row(file))
        except (NotUsed, UserError) as reason:
            left_out.append((f"{file.parent.parent.name}/{file.parent.name}", str(reason)))
    entries: dict[Device, Entry] = {}
    for device in dict.fromkeys(row.device for row in rows):
        mine, others = _alone([row for row in rows if row.device == device])
        left_out += [(row.run, "something else had memory of its card") for row in others]
        entries[device] = entry_of(device, mine, date)
    no_speed = tuple((row.run, row.no_speed) for row in rows if row.no_speed)
    return Found(entries, tuple(left_out), no_speed)


def entry_of(device: Device, rows: Sequence[Row], date: str) -> Entry:
    """Return the medians of runs on one device."""
    one = [row for row in rows if row.ranks == 1]
    several = [row for row in rows if row.ranks > 1]
    outside = {
        name: figure_of([row.last_gib for row in some if row.last_gib is not None])
        for name, some in ((ONE, one), (SEVERAL, several))
    }
    constants = {
        "context_gib": figure_of([row.first_gib for row in one if row.first_gib is not None]),
        "after_context_gib": figure_of(
            [
                max(0.0, row.last_gib - row.first_gib)
                for row in one
                if row.last_gib is not None and row.first_gib is not None
            ]
        ),
        "nccl_gib": _nccl(outside[ONE], several),
    }
    speed = {
        dtype: figure_of([row.speed for row in rows if row.dtype == dtype and row.speed is not None])
        for dtype in sorted({row.dtype for row in rows})
    }
    return Entry(
        device.name,
        device.driver,
        device.kind,
        date,
        tuple(row.run for row in rows),
        constants=_known(constants),
        speed=_known(speed),
        outside_gib=_known(outside),
    )


def _nccl(one: Figure | None, several: Sequence[Row]) -> Figure | None:
    """What several ranks have beside what one has; nothing without runs of both kinds."""
    if one is None:
        return None
    return figure_of([max(0.0, row.last_gib - one.value) for row in several if row.last_gib is not None])


def _alone(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Set runs apart that began with more in use than others: CUDA counts all that is taken of a card."""
    least = min((row.first_gib for row in rows if row.first_gib is not None), default=0.0)
    others = [row for row in rows if row.first_gib is not None and row.first_gib > least + OTHERS_GIB]
    return [row for row in rows if row not in others], others


def _known(figures: dict[str, Figure | None]) -> dict[str, Figure]:
    return {name: figure for name, figure in figures.items() if figure is not None}
