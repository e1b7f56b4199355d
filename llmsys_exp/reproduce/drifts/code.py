"""Our code of then against that of now, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.evidence.code import OF_PROGRAM
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.git import Repository
from llmsys_exp.reproduce.drift import Drift, Effect
from llmsys_exp.reproduce.effects import FORECAST_ONLY, NOTHING, NUMBERS, of_code
from llmsys_exp.reproduce.repository import Changed, changed_between, has_commit

SHOWN = 6
BACK = "--code runs it with the code of then"


def code_drifts(
    then: Mapping[str, Any],
    now: Mapping[str, Any] | None,
    *,
    repository: Repository | None,
    patch: Path | None,
    patch_now: Path | None,
) -> Iterator[Drift]:
    """Yield a drift for each changed file that may change something, and one for all others.

    Args:
        then: `code` of the manifest.
        now: the same of the code that runs.
        repository: our checkout; None of an installed package.
        patch: the uncommitted changes of then, checked; None where there were none, or they were not kept.
        patch_now: those of now.
    """
    if not then.get("commit") or then.get("of", OF_PROGRAM) != OF_PROGRAM:
        return  # the package's version is among the packages
    commit = str(then["commit"])
    if now is not None and _same(then, now):
        return
    if repository is None or now is None or not has_commit(repository, commit):
        where = "this program is no checkout" if repository is None else "this repository does not hold it"
        yield _unknown(f"the run's commit {commit[:12]} cannot be compared: {where}", then=commit)
        return
    yield from _left_out(then, commit, has_patch=patch is not None)
    try:
        changed = changed_between(repository, (commit, patch), (str(now["commit"]), patch_now))
    except EvidenceError as error:
        yield _unknown(f"the changes on top of {commit[:12]} do not go with it: {error}", then=commit)
        return
    yield from _of_files(changed, commit)


def _left_out(then: Mapping[str, Any], commit: str, *, has_patch: bool) -> Iterator[Drift]:
    """Tell of changes that the record does not hold."""
    left = [one for one in then.get("left_out") or () if isinstance(one, Mapping)]
    if then.get("dirty") and not has_patch and not left:
        yield _unknown(f"commit {commit[:12]} had changes on top that the record does not hold", then=commit)
    for one in left:
        path = str(one.get("path"))
        reach = of_code(path) if path.endswith(".py") else NOTHING
        what = f"{path} lay there and is not in the record ({one.get('why')})"
        yield Drift("code", path, what, reach.effect, reach.shows_in)


def _of_files(changed: Sequence[Changed], commit: str) -> Iterator[Drift]:
    planner, harmless = list[str](), list[str]()
    for one in changed:
        reach = of_code(one.path)
        if reach.effect is Effect.NOTHING:
            (planner if reach.shows_in else harmless).append(one.path)
            continue
        what = f"{one.path} has changed since {commit[:12]} (+{one.added} -{one.removed} lines)"
        yield Drift("code", one.path, what, reach.effect, reach.shows_in, then=commit, do=BACK)
    if planner:
        what = f"the planner has changed, and its forecasts may: {_named(planner)}"
        yield Drift("code", "planner", what, Effect.NOTHING, FORECAST_ONLY.shows_in, now=planner, do=BACK)
    if harmless:
        what = f"files that no run computes with have changed: {_named(harmless)}"
        yield Drift("code", "others", what, Effect.NOTHING, now=harmless)


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")


def _same(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether commit and changes on top are equal; what was not kept may be anything."""
    if then.get("commit") != now.get("commit"):
        return False
    if not then.get("dirty") and not now.get("dirty"):
        return True
    known = then.get("patch_sha256"), now.get("patch_sha256")
    return None not in known and known[0] == known[1]


def _unknown(what: str, *, then: str) -> Drift:
    return Drift("code", "commit", what, NUMBERS.effect, NUMBERS.shows_in, then=then, do=BACK)
