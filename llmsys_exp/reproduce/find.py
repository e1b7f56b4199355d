"""Find the run that is named: a run folder, a manifest file, an id NAME/FOLDER, or the folder of a sweep."""

from __future__ import annotations

import re
from pathlib import Path

from llmsys_exp.errors import UserError, closest
from llmsys_exp.runs.listing import find_runs
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.sweeps.folder import FILE as SWEEP_FILE

LATEST = "latest"
_LATEST = re.compile(rf"{LATEST}(?:~(\d{{1,6}}))?")


def find_run(text: str, outputs: Path) -> Path:
    """Return the file that tells of a run (its manifest, or the record of its start), or of a sweep.

    Args:
        text: what the user wrote.
        outputs: where ids are looked up.

    Raises:
        UserError: when there is none.
    """
    named = Path(text).expanduser()
    for path in (named, outputs / text):
        if path.is_file():
            return path.absolute()
        if path.is_dir():
            return _record_in(path.absolute(), text)
    raise UserError("There is no such run", where=text, do=_similar(text, named, outputs))


def latest_folder(text: str, outputs: Path) -> Path | None:
    """Return the folder that `latest` or `latest~1` stands for; None of any other text.

    Raises:
        UserError: when there are not so many runs.
    """
    match = _LATEST.fullmatch(text)
    return _latest(outputs, int(match[1] or 0)).folder if match else None


def _latest(outputs: Path, before: int) -> RunPaths:
    runs = find_runs(outputs)
    if not runs:
        raise UserError(
            "There is no run here", where=str(outputs.absolute()), do="--outputs FOLDER looks elsewhere"
        )
    if before >= len(runs):
        raise UserError(
            f"{LATEST}~{before} is not there", why=f"{outputs} holds {len(runs)} run{'s'[: len(runs) - 1]}"
        )
    return runs[-1 - before].paths


def is_sweep(file: Path) -> bool:
    """Whether a file that `find_run` found is that of a sweep."""
    return file.name == SWEEP_FILE


def run_folder(file: Path) -> Path | None:
    """Return the run folder around a manifest; None of a manifest that lies alone."""
    return file.parent if RunPaths(file.parent).job.is_file() else None


def _record_in(folder: Path, text: str) -> Path:
    paths = RunPaths(folder)
    for file in (paths.manifest, paths.start, folder / SWEEP_FILE):
        if file.is_file():
            return file
    if paths.job.is_file():
        raise UserError(
            "This run has neither a manifest nor a record of its start",
            where=text,
            why="It did not come to its end, and the llmsys that began it kept records at the end only",
            do=f"Go on with it: llmsys train resume={text}",
        )
    inner = sorted(one.parent.name for one in folder.glob("*/manifest.json"))
    do = f"Name one of the runs in it: {', '.join(inner[-3:])}" if inner else "llmsys runs lists them"
    raise UserError("This is not a run folder", where=text, why="It holds no manifest.json", do=do)


def _similar(text: str, named: Path, outputs: Path) -> str:
    """Point to a run of nearly that name, or to one of the folder's last name that lies elsewhere."""
    there = [one.parent for one in outputs.glob("*/*/manifest.json")] if outputs.is_dir() else []
    moved = [one for one in there if one.name == named.name]
    if moved:
        return f"A run of this name lies in {moved[0]}"
    near = closest(text, [f"{one.parent.name}/{one.name}" for one in there])
    return (
        f"Did you mean {near}?"
        if near
        else f"`llmsys runs` lists those in {outputs}; --outputs FOLDER looks elsewhere"
    )
