"""The folder of a sweep: what was asked, its ledger, its locks and logs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import disk_errors, json_text, write_text
from llmsys_exp.runs.folder import create_sweep_folder
from llmsys_exp.runs.manifest import utc_now
from llmsys_exp.sweeps.ledger.ledger import SKIPPED, Ledger
from llmsys_exp.sweeps.ledger.searching import SearchLedger
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.unchanged import check_unchanged, fingerprint, first_line
from planner.units import GIB

SCHEMA_VERSION = 1
SEARCH_VERSION = 2
"""Of sweeps whose points are added while they run, which the first version does not know."""
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
        search: what a search looks for, as `search.asked` reads it; its points are added while it runs, to
            `points` and `forecasts`, whenever the ledger is read. None: all points are there.
    """

    id: str
    name: str
    verb: str
    base: tuple[str, ...]
    points: list[Point]
    started_in: str
    options: dict[str, Any] = field(default_factory=dict)
    forecasts: list[dict[str, Any]] = field(default_factory=list)
    search: dict[str, Any] | None = None

    def overrides(self, point: Point, more: Sequence[str] = ()) -> list[str]:
        """Return the overrides of a point's command line; later ones win."""
        return [*self.base, *point.overrides, *more]

    def takes_bytes(self, number: int, of: str) -> int | None:
        """Return what a point takes of each `device` or of the `host` by its forecast; None: not known."""
        figures = self.forecasts[number - 1]["figures"] if len(self.forecasts) >= number else {}
        needed = figures.get(f"{of}_gib")
        return None if needed is None else int(needed * GIB)

    def ledger(self, paths: SweepPaths) -> Ledger:
        """Open the ledger."""
        if self.search is None:
            return Ledger(paths.ledger, self.id, len(self.points))
        return SearchLedger(paths.ledger, self.id, self._take_told)

    @property
    def expected(self) -> int:
        """How many points it has, or is to have."""
        return len(self.points) if self.search is None else max(len(self.points), self.search["trials"])

    def _take_told(self, entry: Mapping[str, Any]) -> None:
        """Take in what the ledger of a search tells; it may be read several times."""
        if "trials" in entry and self.search is not None:
            self.search["trials"] = max(entry["trials"], self.search["trials"])
        elif entry.get("point", 0) > len(self.points):
            added = entry["added"]
            self.points.append(Point(entry["point"], added["key"], tuple(added["overrides"])))
            self.forecasts.append(added["forecast"])


def create_sweep(
    outputs: Path,
    name: str,
    verb: str,
    *,
    base: Sequence[str],
    points: Sequence[Point] | Mapping[str, Any],
    options: Mapping[str, Any],
    forecasts: Sequence[Mapping[str, Any]] = (),
) -> tuple[SweepPaths, Sweep]:
    """Make the folder of a sweep, and write down what was asked for and which points are skipped.

    Args:
        outputs: where folders of sweeps go.
        name: of the experiment.
        verb: what runs a point.
        base: overrides that all points share.
        points: the points, or what a search looks for, which will add some.
        options: how it is run.
        forecasts: what the gate said of each point.

    Raises:
        UserError: when the place cannot be written to.
    """
    sought = dict(points) if isinstance(points, Mapping) else None
    listed = [] if isinstance(points, Mapping) else list(points)
    digest = _digest(verb, base, listed, sought)
    paths = SweepPaths(create_sweep_folder(outputs, name, digest))
    # the name of the folder is part of it, so that the same sweep begun twice is two
    identity = f"{digest}-{paths.folder.name}"
    told = list(map(dict, forecasts))
    here = str(Path.cwd())
    sweep = Sweep(identity, name, verb, tuple(base), listed, here, dict(options), told, sought)
    with disk_errors(paths.folder):
        (paths.folder / "points").mkdir()
    skipped = [
        (point.number, SKIPPED, {"what": one["reason"], **one["figures"]})
        for point, one in zip(listed, told, strict=False)
        if one["verdict"] == SKIPPED
    ]
    version = SCHEMA_VERSION if sought is None else SEARCH_VERSION
    content = json_text({"schema_version": version, "created": utc_now(), **asdict(sweep)})
    ledger = sweep.ledger(paths)
    ledger.asked = fingerprint(content.encode())
    ledger.move_all(skipped)
    # last: a folder without it is no sweep, so that none is run whose skipped points are not written down
    write_text(paths.sweep, content)
    return paths, sweep


def _digest(verb: str, base: Sequence[str], points: Sequence[Point], search: Mapping[str, Any] | None) -> str:
    sought = [] if search is None else [search]
    text = json.dumps([verb, list(base), [point.key for point in points], *sought])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def open_sweep(folder: Path) -> tuple[SweepPaths, Sweep]:
    """Read the folder of a sweep.

    Raises:
        UserError: when it is none, or one that a later llmsys wrote.
    """
    paths = SweepPaths(folder.expanduser().absolute())
    try:
        written = paths.sweep.read_bytes()
        content = json.loads(written)
    except FileNotFoundError:
        raise UserError(
            "This is no folder of a sweep",
            where=str(folder),
            do="`llmsys sweep list` shows those of this place",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError("Cannot read the sweep", where=str(paths.sweep), why=str(error)) from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version not in (SCHEMA_VERSION, SEARCH_VERSION):
        raise UserError(
            f"The sweep has version {version}, and this llmsys knows no later one than {SEARCH_VERSION}",
            where=str(paths.sweep),
            do="Use the llmsys that began it, or a later one",
        )
    sweep = _from_plain(content, paths)
    told = first_line(paths.ledger)
    if sweep.search is not None and sweep.id.partition("-")[0] != _digest(
        sweep.verb, sweep.base, (), sweep.search
    ):
        raise UserError(
            "The search was changed after it had begun",
            where=str(paths.sweep),
            why="What its points were compared by would not be the same",
            do="Put the file back, or begin a new search",
        )
    check_unchanged(paths.sweep, written, told)
    if sweep.search is not None:
        sweep.ledger(paths).states()  # its points are there
    return paths, sweep


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _from_plain(content: dict[str, Any], paths: SweepPaths) -> Sweep:
    try:
        lists = (content["base"], content["points"], content["forecasts"])
        if not all(isinstance(one, list) for one in lists) or not all(map(_is_mapping, content["forecasts"])):
            raise TypeError("base, points or forecasts")
        points = [
            Point(int(one["number"]), str(one["key"]), tuple(one["overrides"])) for one in content["points"]
        ]
        return Sweep(
            content["id"],
            content["name"],
            content["verb"],
            tuple(content["base"]),
            points,
            content["started_in"],
            content["options"],
            list(content["forecasts"]),
            content.get("search"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError("The sweep is not as it was written", where=f"{paths.sweep}: {error!r}") from None
