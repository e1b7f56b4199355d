"""Which runs are needed by others: by the ledger of a sweep, or by a run that repeats or reads it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.browse.points import Points
from llmsys_exp.runs.listing import FoundRun

_BETWEEN = re.compile(r"[/\\=,;:\s'\"\[\]{}()]+")
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Need:
    """Something for which a run has to stay."""

    what: str
    """As people read it."""
    by: str | None = None
    """Id of the run that needs it; None: a sweep, which stays."""
    of_checkpoints: bool = True
    """Whether it needs the checkpoints, too."""


Needs = Mapping[str, Sequence[Need]]
"""Id of a run -> for what it has to stay."""


def find_needs(runs: Sequence[FoundRun], points: Points) -> dict[str, list[Need]]:
    """Return what needs each run."""
    ids = {run.id for run in runs}
    found: dict[str, list[Need]] = {}
    for name, point in points.by_run.items():
        of_checkpoints = False  # a point that is done never goes on
        found.setdefault(name, []).append(Need(f"it is point {point}", None, of_checkpoints))
    for sweep in points.sweeps:
        texts = [*sweep.base, *(text for point in sweep.points for text in point.overrides)]
        for name, inside in references(texts, ids):
            found.setdefault(name, []).append(Need(f"the sweep {sweep.name} reads it", None, inside))
    for run in runs:
        _of_run(run, ids - {run.id}, found)
        for name, why in points.unread.items():
            if run.name == name.partition("/")[0]:
                found.setdefault(run.id, []).append(Need(f"the sweep {name} cannot be read: {why}"))
    return found


def still_needed(run: FoundRun, needs: Needs, going: Collection[str], *, checkpoints: bool) -> Need | None:
    """Return the first need of a run that is not one of a run that goes itself.

    Args:
        run: the run.
        needs: of all runs.
        going: ids of the runs that go.
        checkpoints: whether only the checkpoints go.
    """
    for need in needs.get(run.id, ()):
        if need.by in going and not checkpoints:
            continue
        if need.of_checkpoints or not checkpoints:
            return need
    return None


def references(content: Any, ids: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Yield each id NAME/FOLDER that occurs in texts, and whether something of its checkpoints is meant.

    A path counts wherever it begins: `outputs` may have been moved or named in another way.
    """
    for text in _texts(content):
        parts = [one for one in _BETWEEN.split(text) if one]
        for place in range(len(parts) - 1):
            name = f"{parts[place]}/{parts[place + 1]}"
            if name in ids:
                yield name, len(parts) > place + 2 and parts[place + 2] == _CHECKPOINTS


def _of_run(run: FoundRun, others: Collection[str], found: dict[str, list[Need]]) -> None:
    record = run.read().record
    repeats = record["reproduces"]
    for name, _ in references(repeats, others):
        found.setdefault(name, []).append(Need(f"{run.id} repeats it", run.id, False))
    for name, inside in references([record["inputs"], record["config"], record["overrides"]], others):
        if all(need.by != run.id for need in found.get(name, ())):
            found.setdefault(name, []).append(Need(f"{run.id} reads it", run.id, inside))


def _texts(content: Any) -> Iterator[str]:
    """Yield all texts in a tree that could hold a path."""
    if isinstance(content, str):
        if "/" in content:
            yield content
    elif isinstance(content, Mapping):
        for one in content.values():
            yield from _texts(one)
    elif isinstance(content, (list, tuple)):
        for one in content:
            yield from _texts(one)
