"""Which run is which point of which sweep: by the ledgers below `outputs`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llmsys_exp.errors import UserError
from llmsys_exp.runs.migrate import run_id
from llmsys_exp.sweeps.folder import FILE, Sweep, SweepPaths, open_sweep


@dataclass(frozen=True)
class SweepPoint:
    """Where a run stands in a sweep."""

    sweep: str
    """`NAME/FOLDER` of the sweep."""
    number: int

    def __str__(self) -> str:
        return f"{self.number} of {self.sweep}"


@dataclass
class Points:
    """What the ledgers say."""

    by_run: dict[str, SweepPoint] = field(default_factory=dict)
    """Id of a run -> its point: the newest attempt."""
    sweeps: list[Sweep] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    """Id of a sweep whose files cannot be read -> why: any run beside it may be its point."""


def find_points(outputs: Path) -> Points:
    """Read the sweeps below a folder; one that is damaged is noted and stops nothing."""
    found = Points()
    for folder in _sweeps(outputs):
        identity = run_id(folder)
        try:
            paths, sweep = open_sweep(folder)
            states = sweep.ledger(paths).states()
        except (UserError, OSError, KeyError, TypeError, ValueError) as error:
            found.unread[identity] = str(error)
            continue
        found.sweeps.append(sweep)
        for number, now in states.items():
            place = now.fields.get("folder")
            if isinstance(place, str):
                found.by_run[run_id(Path(place))] = SweepPoint(identity, number)
    return found


def run_folders(paths: SweepPaths, sweep: Sweep) -> Iterator[Path]:
    """Yield the run folders of a sweep, in the order of its points; of one that moved, those beside it."""
    for now in sweep.ledger(paths).states().values():
        place = now.fields.get("folder")
        if not isinstance(place, str):
            continue
        folder = Path(place)
        yield folder if folder.is_dir() else paths.folder.parent / folder.name


def _sweeps(outputs: Path) -> list[Path]:
    """Return the folders of sweeps below `outputs`, or below the folder of one experiment."""
    files = [*outputs.glob(f"*/*/{FILE}"), *outputs.glob(f"*/{FILE}")]
    return sorted({one.parent for one in files})
