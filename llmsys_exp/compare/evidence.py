"""Code, packages, machine, data and model that differ, found as `reproduce` does; the first run is *then*."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmsys_exp.compare.subjects import Subject
from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.check import patch_of
from llmsys_exp.reproduce.drift import KINDS, Drift, Effect
from llmsys_exp.reproduce.drifts.code import code_drifts
from llmsys_exp.reproduce.drifts.files import data_drifts, model_drifts
from llmsys_exp.reproduce.drifts.machine import machine_drifts
from llmsys_exp.reproduce.drifts.packages import package_drifts, python_drifts, variable_drifts
from llmsys_exp.reproduce.effects import NUMBERS, ROWS
from llmsys_exp.reproduce.repository import code_repository
from llmsys_exp.runs.told import group, part

WHOLE_FROM = 12
"""Packages: a record with fewer names only some of them, as version 1 did."""
VERSION = "version"
"""Key of the row of commits; the other rows of the code are its files."""
_CODE = ("commit", "patch_sha256")
Section = Mapping[str, Any]


@dataclass
class EvidenceRow:
    """One thing that is not the same in all runs."""

    kind: str
    key: str
    effect: Effect
    values: list[Any]
    """A run each, in order; None: not there."""
    said: dict[str, str] = field(default_factory=dict)
    """Letter of a run -> the difference from the first run in words."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**vars(self), "effect": self.effect.words}


def evidence_rows(subjects: Sequence[Subject], problems: list[str]) -> list[EvidenceRow]:
    """Return what differs, in the order of `KINDS`, most serious first; what is not recorded is left out.

    Args:
        subjects: the runs.
        problems: takes what could not be compared, because somebody has given a record another form.
    """
    rows: dict[tuple[str, str], EvidenceRow] = {}
    first, *others = subjects
    for place, other in enumerate(others, start=1):
        for drift in _pair(first, other, problems):
            row = rows.get((drift.kind, drift.key))
            if row is None:
                row = EvidenceRow(drift.kind, drift.key, drift.effect, [drift.then] * len(subjects))
                rows[drift.kind, drift.key] = row
            row.values[place] = drift.now
            row.effect = max(row.effect, drift.effect)
            row.said[other.letter] = drift.what
    return sorted(rows.values(), key=lambda row: (KINDS.index(row.kind), -row.effect))


def _pair(first: Subject, other: Subject, problems: list[str]) -> list[Drift]:
    finders: tuple[Callable[[], Iterable[Drift]], ...] = (
        lambda: _data(first, other),
        lambda: _model(first, other),
        lambda: _code(first, other),
        lambda: _packages(first, other),
        lambda: python_drifts(first.told.group("environment"), other.told.group("environment")),
        lambda: _machine(first, other),
        lambda: _variables(first, other),
    )
    wrong: list[str] = []
    found = [part(lambda find=find: list(find()), list[Drift](), wrong) for find in finders]
    problems += [
        f"{other.letter}: its record and that of {first.letter} do not go together: {why}" for why in wrong
    ]
    return [drift for drifts in found for drift in drifts]


def _data(first: Subject, other: Subject) -> Iterable[Drift]:
    old, new = first.told.group("data"), other.told.group("data")
    files, files_now = group(old, "files"), group(new, "files")
    yield from data_drifts(*_shared(files, files_now))
    for name in sorted(files.keys() ^ files_now.keys()) if files and files_now else ():
        was, now = (group(one, name).get("sha256") for one in (files, files_now))
        yield Drift("data", name, f"only one of them has {name}", ROWS.effect, ROWS.shows_in, was, now)
    for key in ("template_sha256", "tokenizer_sha256"):
        if old.get(key) and new.get(key) and old[key] != new[key]:
            what = f"another {key.removesuffix('_sha256')}"
            yield Drift("data", key, what, ROWS.effect, ROWS.shows_in, old[key], new[key])
    rows, rows_now = group(old, "rows"), group(new, "rows")
    for name in sorted(rows.keys() & rows_now.keys()):
        was, now = rows[name], rows_now[name]
        if was != now:
            what = f"{now} rows of {name}; {first.letter} had {was}"
            yield Drift("data", f"rows of {name}", what, ROWS.effect, ROWS.shows_in, was, now)


def _model(first: Subject, other: Subject) -> Iterable[Drift]:
    old, new = first.told.group("model"), other.told.group("model")
    files, files_now = (group(one, "files") for one in (old, new))
    hashed = not files.keys().isdisjoint(files_now)
    if ("config.json" in files) is not ("config.json" in files_now):
        yield from model_drifts(*_shared(files, files_now))  # version 1 knew of weights alone
    elif hashed:
        yield from _both_ways(model_drifts, old, new)
    effect = Effect.NOTHING if hashed else NUMBERS.effect
    keys = {"source": effect, "random_weights_seed": NUMBERS.effect, "revision": effect}
    for key, one in keys.items():
        was, now = old.get(key), new.get(key)
        if was != now and old and new:
            yield Drift("model", key, f"{key.replace('_', ' ')}: {now}, and {was}", one, (), was, now)


def _code(first: Subject, other: Subject) -> Iterable[Drift]:
    old, new = first.told.group("code"), other.told.group("code")
    if not old or not new or [old.get(key) for key in _CODE] == [new.get(key) for key in _CODE]:
        return
    was, now = _version(old), _version(new)
    then_patch, patch = (_patch(one) for one in (first, other))
    drifts = list(code_drifts(old, new, repository=code_repository(), patch=then_patch, patch_now=patch))
    effect = max((one.effect for one in drifts), default=Effect.NOTHING)
    yield Drift("code", VERSION, f"code {now}, and {was}", effect, (), was, now)
    yield from drifts


def _version(code: Section) -> str:
    """Return commit and changes on top in a few signs."""
    commit, patch = str(code.get("commit"))[:12], code.get("patch_sha256")
    return f"{commit}+{str(patch)[:8]}" if patch else f"{commit}{'+?' if code.get('dirty') else ''}"


def _patch(subject: Subject) -> Path | None:
    try:
        return patch_of(subject.logged) if subject.has_folder else None
    except UserError:
        return None  # gone or changed since: then the commits are compared


def _packages(first: Subject, other: Subject) -> Iterable[Drift]:
    old, new = (one.told.group("environment", "packages") for one in (first, other))
    if min(len(old), len(new)) <= WHOLE_FROM:
        shared = old.keys() & new.keys()
        old, new = ({name: one[name] for name in shared} for one in (old, new))
    return package_drifts(old, new, whole=True)


def _machine(first: Subject, other: Subject) -> Iterable[Drift]:
    old, new = first.told.group("machine"), other.told.group("machine")
    inputs = first.told.group("inputs")
    on_gpu = "cuda" in (inputs.get("device"), other.told.group("inputs").get("device"))
    return machine_drifts(old, new, on_gpu=on_gpu, ranks=int(inputs.get("world_size") or 1))


def _variables(first: Subject, other: Subject) -> Iterable[Drift]:
    old, new = (one.told.group("environment", "variables") for one in (first, other))
    if not old or not new:
        return ()
    inputs = first.told.group("inputs")
    on_gpu, ranks = inputs.get("device") == "cuda", int(inputs.get("world_size") or 1)
    return variable_drifts(old, new, on_gpu=on_gpu, ranks=ranks)


def _shared(files: Section, files_now: Section) -> tuple[Section, Section]:
    """Return two sections with the files that both tell of."""
    names = [name for name in files if name in files_now]
    return {"files": {name: files[name] for name in names}}, {
        "files": {name: files_now[name] for name in names}
    }


def _both_ways(
    find: Callable[[Section, Section], Iterable[Drift]], old: Section, new: Section
) -> Iterable[Drift]:
    """Yield drifts, and those that only show the other way round: files that the first run had not."""
    seen: set[str] = set()
    for drift in find(old, new):
        seen.add(drift.key)
        yield drift
    for drift in find(new, old):
        if drift.key not in seen:
            what = f"{drift.key} was not there"
            yield replace(drift, what=what, then=drift.now, now=drift.then)
