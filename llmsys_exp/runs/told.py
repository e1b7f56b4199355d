"""What a run folder tells, complete or not: its manifest, or else start.json, job.json and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.manifest import EMPTY
from llmsys_exp.runs.migrate import find_manifest, run_id
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.record import read_results

T = TypeVar("T")


@dataclass(frozen=True)
class Told:
    """A run as far as its folder tells.

    Attributes:
        paths: its files.
        record: keys as in a manifest, whatever they were read from.
        complete: whether there is a manifest.
        job: job.json; empty where it is absent or broken.
    """

    paths: RunPaths
    record: dict[str, Any]
    complete: bool
    job: dict[str, Any]

    def group(self, *path: str) -> dict[str, Any]:
        """Return a group of the record; empty where there is none."""
        return group(self.record, *path)


def read_told(folder: Path) -> Told:
    """Read a run folder; files that are missing, cut or of a wrong shape count as absent."""
    paths = RunPaths(folder)
    manifest = part(lambda: find_manifest(paths.manifest), None)
    job = read_json(paths.job)
    job = job if isinstance(job, dict) else {}
    if manifest is not None:
        return Told(paths, manifest, True, job)
    empty = {**deepcopy(dict(EMPTY)), "id": run_id(folder)}
    record = part(lambda: find_manifest(paths.start), None) or empty
    plan = group(job, "plan")
    record["config"] = record["config"] or group(job, "config")
    record["name"] = record["name"] or str(record["config"].get("name") or folder.parent.name)
    record["choices"] = record["choices"] or [
        one for one in plan.get("choices") or () if isinstance(one, dict)
    ]
    for key in ("forecast", "verdict"):
        record[key] = record[key] or group(plan, key) or None
    record["results"] = {**read_results(paths), **record["results"]}
    return Told(paths, record, False, job)


def part(make: Callable[[], T], default: T, problems: list[str] | None = None) -> T:
    """Return what `make` reads out of a record, or a default where somebody has given it another form.

    Args:
        make: reads.
        default: stands in.
        problems: takes what was wrong.
    """
    try:
        return make()
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        if problems is not None:
            problems.append(str(error))
        return default


def group(content: Any, *path: str) -> dict[str, Any]:
    """Follow keys to a group of a file that may have been edited or cut; empty where there is none.

    >>> group({"a": {"b": {"c": 1}}}, "a", "b"), group({"a": 3}, "a", "b")
    ({'c': 1}, {})
    """
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content if isinstance(content, dict) else {}
