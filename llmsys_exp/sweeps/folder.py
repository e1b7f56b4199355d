"""The folder of a sweep: what was asked, its ledger, its locks and logs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import disk_errors, write_json
from llmsys_exp.runs.folder import create_sweep_folder
from llmsys_exp.runs.manifest import utc_now
from llmsys_exp.sweeps.ledger.ledger import SKIPPED, Ledger
from llmsys_exp.sweeps.points.point import Point
from planner.units import GIB

SCHEMA_VERSION = 1
FILE = "sweep.json"


@dataclass(frozen=True)
class SweepPaths:
    """Every file of one sweep, as a property of its folder."""

    folder: Path

    @property
    def sweep(self) -> Path:
        """What was asked for; written once."""
        return self.folder / FILE

    @property
    def ledger(self) -> Path:
        """What happened to each point."""
        return self.folder / "ledger.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the runner."""
        return self.folder / "sweep.lock"

    @property
    def log(self) -> Path:
        """What a runner says that has no terminal."""
        return self.folder / "log.txt"

    def point_log(self, number: int) -> Path:
        """What the command of one point says."""
        return self.folder / "points" / f"{number}.txt"


@dataclass(frozen=True)
class Sweep:
    """What was asked for.

    Attributes:
        id: identity of the sweep; its ledger carries it too.
        name: of the experiment, and of the folder that the run folders lie in.
        verb: `train` or `infer`.
        base: overrides that all points share.
        points: the points, numbered from 1.
        started_in: the folder that relative paths begin at.
        options: how it is run: the fields of `runner.RunOptions`.
        forecasts: what the gate said of each point: `verdict`, `reason`, `figures`, `fix`, `filled_from`.
    """

    id: str
    name: str
    verb: str
    base: tuple[str, ...]
    points: tuple[Point, ...]
    started_in: str
    options: dict[str, Any] = field(default_factory=dict)
    forecasts: tuple[dict[str, Any], ...] = ()

    def overrides(self, point: Point, more: Sequence[str] = ()) -> list[str]:
        """Return the overrides of a point's command line; later ones win."""
        return [*self.base, *point.overrides, *more]

    def gpu_bytes(self, number: int) -> int | None:
        """Return what a point needs of each GPU by its forecast; None where that is not known."""
        figures = self.forecasts[number - 1]["figures"] if self.forecasts else {}
        needed = figures.get("needed_gib") if figures.get("where") == "gpu" else None
        return None if needed is None else int(needed * GIB)

    def ledger(self, paths: SweepPaths) -> Ledger:
        """Open the ledger."""
        return Ledger(paths.ledger, self.id, len(self.points))


def create_sweep(
    outputs: Path,
    name: str,
    verb: str,
    *,
    base: Sequence[str],
    points: Sequence[Point],
    options: Mapping[str, Any],
    forecasts: Sequence[Mapping[str, Any]] = (),
) -> tuple[SweepPaths, Sweep]:
    """Make the folder of a sweep, and write down what was asked for and which points are skipped.

    Raises:
        UserError: when the place cannot be written to.
    """
    text = json.dumps([verb, list(base), [point.key for point in points]])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    paths = SweepPaths(create_sweep_folder(outputs, name, digest))
    # the name of the folder is part of it, so that the same sweep begun twice is two
    identity = f"{digest}-{paths.folder.name}"
    told = tuple(map(dict, forecasts))
    sweep = Sweep(identity, name, verb, tuple(base), tuple(points), str(Path.cwd()), dict(options), told)
    with disk_errors(paths.folder):
        (paths.folder / "points").mkdir()
    skipped = [
        (point.number, SKIPPED, {"what": one["reason"], **one["figures"]})
        for point, one in zip(points, told, strict=False)
        if one["verdict"] == SKIPPED
    ]
    sweep.ledger(paths).move_all(skipped)
    # last: a folder without it is no sweep, so that none is run whose skipped points are not written down
    write_json(paths.sweep, {"schema_version": SCHEMA_VERSION, "created": utc_now(), **asdict(sweep)})
    return paths, sweep


def open_sweep(folder: Path) -> tuple[SweepPaths, Sweep]:
    """Read the folder of a sweep.

    Raises:
        UserError: when it is none, or one that a later llmsys wrote.
    """
    paths = SweepPaths(folder.expanduser().absolute())
    try:
        content = json.loads(paths.sweep.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            "This is no folder of a sweep",
            where=str(folder),
            do="`llmsys sweep list` shows those of this place",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError("Cannot read the sweep", where=str(paths.sweep), why=str(error)) from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise UserError(
            f"The sweep has version {version}, and this llmsys knows version {SCHEMA_VERSION}",
            where=str(paths.sweep),
            do="Use the llmsys that began it, or a later one",
        )
    return paths, _from_plain(content, paths)


def _from_plain(content: dict[str, Any], paths: SweepPaths) -> Sweep:
    try:
        points = tuple(
            Point(int(one["number"]), str(one["key"]), tuple(one["overrides"])) for one in content["points"]
        )
        return Sweep(
            content["id"],
            content["name"],
            content["verb"],
            tuple(content["base"]),
            points,
            content["started_in"],
            content["options"],
            tuple(content["forecasts"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError("The sweep is not as it was written", where=f"{paths.sweep}: {error!r}") from None
