"""Run with the code of then: a worktree at its commit with its changes, in the folder of the new run.

A small driver (`driver.py`) is started with that code in front of the search path; it hands the recorded
settings over as they are. What it runs is what the user's own repository holds, and the recorded patch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.errors import (
    EXIT_DOES_NOT_FIT,
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_STOPPED,
    EXIT_USER,
    JobError,
    UserError,
)
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.git import Repository
from llmsys_exp.report.console import Console
from llmsys_exp.reproduce.check import patch_of
from llmsys_exp.reproduce.logged import Logged, read_logged
from llmsys_exp.reproduce.repository import (
    add_worktree,
    code_repository,
    has_commit,
    move_worktree,
    remove_worktree,
)
from llmsys_exp.runs.files import disk_errors

DRIVER = Path(__file__).with_name("driver.py")
KEPT = "code"
"""Folder of the code in the run folder."""


def check_code(logged: Logged) -> Repository:
    """Return the repository that holds the code of a run; nothing is laid out yet.

    Raises:
        UserError: when it does not, or the changes on top are gone or were edited.
    """
    code, repository = logged.section("code"), code_repository()
    commit = str(code.get("commit") or "")
    if not commit:
        raise UserError("The record does not tell which code the run had", where=str(logged.file))
    if repository is None:
        do = f"git clone the repository, check out {commit[:12]}, and run it there"
        raise UserError("This program is no checkout, so there is no code of then", where="--code", do=do)
    if not has_commit(repository, commit):
        do = f"git fetch it: git -C {repository.root} fetch origin {commit}"
        raise UserError("This repository does not hold the run's commit", where=commit[:40], do=do)
    patch = patch_of(logged)
    if code.get("dirty") and patch is None and not code.get("left_out"):
        raise UserError(
            f"The code had changes on top of {commit[:12]}, and the record does not hold them",
            where=str(logged.file),
            do="Leave --code out to run it with the code of now",
        )
    return repository


@dataclass(frozen=True)
class Order:
    """What the code of then is to run."""

    settings: dict[str, Any]
    """As they were recorded, but for paths and what the command line changes."""
    command: Sequence[str]
    """For the record."""
    overrides: Sequence[str]
    """For the record."""

    def to_dict(self, logged: Logged) -> dict[str, Any]:
        """Return what the driver reads."""
        return {
            "config": self.settings,
            "steps": list(self.settings.get("steps") or ["train"]),
            "command": list(self.command),
            "overrides": list(self.overrides),
            "adapter": logged.section("inputs").get("adapter_folder"),
            "reproduces": logged.id,
        }


def rerun_with_code(logged: Logged, order: Order, *, outputs: Path, console: Console, keep: bool) -> Logged:
    """Run settings with the code of then and return the new record.

    Args:
        logged: the run.
        order: what is run.
        outputs: where run folders go.
        console: where progress is shown.
        keep: leave the code in the new run folder; else it is removed.
    """
    repository = check_code(logged)
    commit = str(logged.section("code")["commit"])
    parent = outputs / str(order.settings.get("name", "default"))
    with disk_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".code-{commit[:8]}-", dir=parent))
        folder.rmdir()
    console.line(f"Code of {commit[:12]}: {folder}")
    add_worktree(repository, folder, commit, patch_of(logged))
    try:
        made = _drive({**order.to_dict(logged), "code": str(folder)}, folder, console, commit)
        if keep:
            move_worktree(repository, folder, made / KEPT)
            console.line(f"Code kept: {made / KEPT}  (git worktree remove {made / KEPT} when done)")
    except EvidenceError as error:
        raise UserError(f"The code cannot be kept: {error}", where=str(folder)) from error
    finally:
        if folder.exists():
            remove_worktree(repository, folder)
    return read_logged(made / "manifest.json")


def _drive(order: dict[str, Any], code: Path, console: Console, commit: str) -> Path:
    """Start the driver and return the run folder that it made."""
    with tempfile.TemporaryDirectory() as scratch:
        ask, tell = Path(scratch) / "order.json", Path(scratch) / "folder"
        ask.write_text(json.dumps(order), encoding="utf-8")
        search = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
        ended = _wait([sys.executable, str(DRIVER), str(ask), str(tell)], env, console)
        if ended == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if ended or not tell.is_file():
            raise _failed(ended, commit)
        return Path(tell.read_text(encoding="utf-8"))


def _wait(command: Sequence[str], env: Mapping[str, str], console: Console) -> int:
    """Run a command that shows what it does, and stop it once where we are stopped."""
    shown = sys.stderr if console.stream is sys.stderr else None  # stdout is the result's, with --json
    # in a session of its own: Ctrl-C would reach it twice, and a second one ends what the first is saving
    started = subprocess.Popen(command, env=env, stdout=shown, start_new_session=True)
    try:
        return started.wait()
    except KeyboardInterrupt:
        started.terminate()
        started.wait()
        raise


def _failed(ended: int, commit: str) -> JobError:
    error = JobError(
        f"The code of then ended with exit code {ended}",
        where=f"commit {commit[:12]}",
        do=f"Run it by hand: git worktree add FOLDER {commit[:12]}",
    )
    # what the user can mend there is the user's to mend here
    error.exit_code = ended if ended in (EXIT_USER, EXIT_DOES_NOT_FIT, EXIT_STOPPED) else EXIT_JOB_FAILED
    return error
