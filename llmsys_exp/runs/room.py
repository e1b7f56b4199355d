"""Is there room for what a step needs: on the disk of its folder, in main memory, on the GPU?"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from llmsys_exp.errors import DoesNotFit, UserError
from planner.units import gib


def free_disk_bytes(folder: Path) -> int:
    """Bytes that may still be written where a folder is."""
    return shutil.disk_usage(folder).free


def need_disk(what: str, need_bytes: int, folder: Path) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        UserError: with both figures.
    """
    free = free_disk_bytes(folder)
    if need_bytes > free:
        raise UserError(
            f"{what} needs {gib(need_bytes):.1f} GiB on disk and {gib(free):.1f} are free",
            where=str(folder),
            do="Free some space, or move the run folder to a larger disk",
        )


def lack_of_memory(
    what: str, uses: Mapping[str, int], free_bytes: int, *, place: str, smaller: str
) -> DoesNotFit | None:
    """Return why a step does not fit a place, with its largest part; None where it does.

    Args:
        what: the step, as a sentence begins.
        uses: bytes by use.
        free_bytes: what the place has left.
        place: such as `main memory`.
        smaller: the settings that would need less.
    """
    need = sum(uses.values())
    if need <= free_bytes:
        return None
    largest = max(uses, key=lambda use: uses[use])
    return DoesNotFit(
        f"{what} needs {gib(need):.1f} GiB of {place} and {gib(free_bytes):.1f} are free",
        why=f"Largest part: {largest}, {gib(uses[largest]):.1f} GiB",
        do=f"Set {smaller}, or run it anyway with gate=warn",
    )
