"""Which run folders may go, and their removal: never one that runs, is needed, or lies elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from llmsys_exp.browse.needs import Needs, still_needed
from llmsys_exp.browse.sizes import size_of
from llmsys_exp.errors import UserError
from llmsys_exp.runs.checkpoints import REMOVING
from llmsys_exp.runs.listing import FoundRun
from llmsys_exp.runs.lock import locked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import COMPLETE, RUNNING, state_of

QUIET_S = 600.0
"""A run of which nobody says how it ended may go on on another machine, as long as it writes."""


@dataclass(frozen=True)
class Order:
    """What is to go."""

    checkpoints: bool = False
    """Only the checkpoints."""
    needed: bool = False
    """Runs that a sweep or another run needs, too."""
    unfinished: bool = False
    """Checkpoints of runs that could go on with them, too."""


@dataclass(frozen=True)
class Doomed:
    """Something that goes."""

    run: FoundRun
    folder: Path
    size_bytes: int


@dataclass(frozen=True)
class Kept:
    """A run that was meant and stays."""

    run: FoundRun
    why: str
    is_needed: bool = False
    """Whether it stays for a sweep or another run."""


def spare_newest(runs: Sequence[FoundRun], count: int) -> list[FoundRun]:
    """Return runs without the newest ones of each experiment."""
    left: dict[str, int] = {}
    found: list[FoundRun] = []
    for run in reversed(runs):
        left[run.name] = left.get(run.name, count) - 1
        if left[run.name] < 0:
            found.append(run)
    return found[::-1]


def choose(
    runs: Sequence[FoundRun], needs: Needs, order: Order, outputs: Path
) -> tuple[list[Doomed], list[Kept]]:
    """Return what goes of the runs that are meant, and what stays, each with the reason."""
    kept: list[Kept] = []
    going: dict[str, FoundRun] = {}
    for run in runs:
        why = _own_reason(run, order, outputs)
        if why:
            kept.append(Kept(run, why))
        elif not order.checkpoints or run.paths.checkpoints.is_dir():
            going[run.id] = run
    kept += [] if order.needed else _keep_needed(going, needs, order)
    doomed = [_doomed(run, order) for run in going.values()]
    return doomed, sorted(kept, key=lambda one: one.run.time)


def remove(doomed: Doomed, outputs: Path) -> bool:
    """Remove a folder; killed half-way, it leaves a hidden one that no list shows.

    Returns:
        Whether it was there to be removed: another prune may have been faster.

    Raises:
        UserError: when somebody works on the run by now, or the disk refuses.
    """
    paths, folder = doomed.run.paths, doomed.folder
    elsewhere = _elsewhere(folder, outputs)
    if elsewhere:
        raise UserError(f"It was not removed: {elsewhere}", where=str(folder))
    aside = folder.with_name(f"{REMOVING}{folder.name}")
    try:
        with ExitStack() as held:
            for lock in (paths.lock, paths.worker_lock):
                if lock.exists():
                    held.enter_context(locked(lock))
            try:
                folder.rename(aside)
            except FileNotFoundError:
                return False
        shutil.rmtree(aside)
        if folder == paths.folder:
            _remove_empty(folder.parent)
        return True
    except OSError as error:
        raise UserError(
            f"It could not be removed whole: {error.strerror or error}", where=str(error.filename or aside)
        ) from error


def leftovers(outputs: Path) -> list[Path]:
    """Return what a prune that was killed left half-removed."""
    names = [one for depth in ("", "*/", "*/*/") for one in outputs.glob(f"{depth}{REMOVING}*")]
    return sorted(one for one in names if one.is_dir() and not _elsewhere(one, outputs))


def _keep_needed(going: dict[str, FoundRun], needs: Needs, order: Order) -> list[Kept]:
    """Take out of `going` what is needed by whatever stays, until nothing changes."""
    kept: list[Kept] = []
    changed = True
    while changed:
        changed = False
        for name, run in list(going.items()):
            need = still_needed(run, needs, going, checkpoints=order.checkpoints)
            if need is not None:
                del going[name]
                kept.append(Kept(run, need.what, is_needed=True))
                changed = True
    return kept


def _own_reason(run: FoundRun, order: Order, outputs: Path) -> str:
    """Say why a run stays whatever is asked for, or return an empty text."""
    paths = run.paths
    elsewhere = _elsewhere(paths.checkpoints if order.checkpoints else paths.folder, outputs)
    if elsewhere:
        return elsewhere
    if state_of(paths) == RUNNING:
        return "it runs"
    if run.state != COMPLETE and not paths.status.is_file() and _is_fresh(paths):
        return f"it has written something in the last {QUIET_S / 60:.0f} minutes"
    if not order.checkpoints or not paths.checkpoints.is_dir():
        return ""
    if run.state != COMPLETE and not order.unfinished:
        return "it could go on from its checkpoints (--failed or --state takes them, too)"
    if not order.needed and not _has_model(paths):
        return "its checkpoints are all there is of its weights"
    return ""


def _has_model(paths: RunPaths) -> bool:
    """Whether what was trained lies outside of the checkpoints, too."""
    return any(one.is_dir() for one in (paths.adapter, paths.merged, paths.perceptron, paths.quantized))


def _is_fresh(paths: RunPaths) -> bool:
    now = time.time()
    for path in (paths.log, paths.metrics, paths.generations, paths.job):
        try:
            if now - path.stat().st_mtime < QUIET_S:
                return True
        except OSError:
            continue
    return False


def _elsewhere(folder: Path, outputs: Path) -> str:
    """Say why a folder is not one of ours to remove, or return an empty text."""
    root = outputs.absolute()
    inside = folder.absolute()
    if not inside.is_relative_to(root) or ".." in inside.parts or inside == root:
        return f"it lies outside of {outputs}"
    while inside != root:
        if inside.is_symlink():
            return f"{inside.name} is a link"
        inside = inside.parent
    return ""


def _doomed(run: FoundRun, order: Order) -> Doomed:
    folder = run.paths.checkpoints if order.checkpoints else run.paths.folder
    return Doomed(run, folder, size_of(folder))


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # other runs are in it
