"""The runs that are compared: found, read, told apart by letters, refused where nothing can be compared."""

from __future__ import annotations

import os
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmsys_exp.browse.named import named_file
from llmsys_exp.browse.points import run_folders
from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.find import is_sweep
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.manifest import is_edited
from llmsys_exp.runs.migrate import find_manifest, read_manifest
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import COMPLETE, state_of
from llmsys_exp.runs.told import Told, group, read_told
from llmsys_exp.sweeps.folder import open_sweep

MOST = 20
ALONE = "a manifest alone"


@dataclass(frozen=True)
class Subject:
    """One of the runs."""

    letter: str
    name: str
    """What to show for it: its id, or the file of a manifest that lies alone."""
    state: str
    told: Told
    has_folder: bool
    notes: tuple[str, ...]
    """What is wrong with its record."""

    @property
    def steps(self) -> set[str]:
        """What was to be done; empty where nothing tells."""
        steps = self.told.group("config").get("steps")
        return {str(one) for one in steps} if isinstance(steps, list) else set()

    @property
    def logged(self) -> Logged:
        """The run as `reproduce` sees it."""
        return Logged(self.told.paths.manifest, self.told.record, self.told.paths, None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "letter": self.letter,
            "run": self.name,
            "folder": str(self.told.paths.folder) if self.has_folder else None,
            "state": self.state,
            "steps": sorted(self.steps),
            "started": self.told.record["started"],
            "notes": list(self.notes),
        }


def find_subjects(texts: Sequence[str], outputs: Path) -> list[Subject]:
    """Return the runs that are named; a sweep stands for those of its points that have run.

    Raises:
        UserError: for one that is not there or named twice, for one alone, for too many, or for runs that
            have nothing in common.
    """
    files = [file for text in texts for file in _files(text, outputs)]
    _check_count(texts, files)
    subjects = [_subject(string.ascii_uppercase[place], file) for place, file in enumerate(files)]
    _check_kinds(subjects)
    return _named_apart(subjects)


def _files(text: str, outputs: Path) -> list[Path]:
    file = named_file(text, outputs)
    if not is_sweep(file):
        return [file]
    paths, sweep = open_sweep(file.parent)
    folders = [folder for folder in run_folders(paths, sweep) if RunPaths(folder).job.is_file()]
    if not folders:
        raise UserError("No point of this sweep has left a run folder", where=text, do="llmsys sweep status")
    if len(folders) > MOST:
        raise UserError(
            f"This sweep has {len(folders)} runs, and compare shows up to {MOST} side by side",
            where=text,
            do=f"llmsys sweep table {text} shows all; llmsys sweep report makes a page; or name some runs",
        )
    return [named_file(str(folder), outputs) for folder in folders]


def _check_count(texts: Sequence[str], files: Sequence[Path]) -> None:
    places: dict[Path, int] = {}
    for place, file in enumerate(files):
        other = places.setdefault(file.resolve(), place)
        if other != place:
            raise UserError(
                "The same run is named twice",
                where=str(file.parent),
                do="Name each run once, a sweep without its runs",
            )
    if len(files) < 2:
        raise UserError(
            "compare takes two runs or more, or a sweep",
            where=" ".join(texts),
            do="llmsys runs lists them; llmsys compare latest~1 latest",
        )
    if len(files) > MOST:
        raise UserError(
            f"compare takes up to {MOST} runs, and these are {len(files)}", do="llmsys runs --sort loss"
        )


def _subject(letter: str, file: Path) -> Subject:
    paths = RunPaths(file.parent)
    if not paths.job.is_file():
        told = Told(paths, read_manifest(file), True, {})
        return Subject(letter, os.path.relpath(file), ALONE, told, False, _edited(file))
    told = read_told(file.parent)
    notes = _edited(paths.manifest) if told.complete else _unread(paths)
    state = COMPLETE if told.complete else state_of(paths)
    return Subject(letter, f"{paths.folder.parent.name}/{paths.folder.name}", state, told, True, notes)


def _edited(file: Path) -> tuple[str, ...]:
    content = read_json(file)
    edited = is_edited(content) if isinstance(content, dict) else None
    return (f"{file.name} was changed by hand since it was written",) if edited else ()


def _unread(paths: RunPaths) -> tuple[str, ...]:
    """Say why a manifest that is there tells nothing."""
    if not paths.manifest.is_file():
        return ()
    try:
        read_manifest(paths.manifest)
    except UserError as error:
        there = "start.json" if find_manifest(paths.start) else "job.json"
        return (f"{error.what}: {error.why or error.do}. What {there} tells is shown",)
    return ()


def _check_kinds(subjects: Sequence[Subject]) -> None:
    """Refuse runs of which one has no step and no figure in common with the first."""
    first, *others = subjects
    for one in others:
        shared = not first.steps or not one.steps or first.steps & one.steps
        if not shared and not _results(first) & _results(one):
            done, other = (", ".join(sorted(each.steps)) for each in (first, one))
            raise UserError(
                f"These runs have nothing that could be compared: {done}, and {other}",
                where=f"{first.name} and {one.name}",
                do="Compare runs that trained, or runs that answered",
            )


def _results(subject: Subject) -> set[str]:
    return set(group(subject.told.record, "results"))


def _named_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """Call copies of one run by their folders, for their ids are the same."""
    names = [one.name for one in subjects]
    return [
        one if names.count(one.name) == 1 else replace(one, name=str(one.told.paths.folder))
        for one in subjects
    ]
