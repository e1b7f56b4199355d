"""The repository around our code, asked through git: trees of then, differences, worktrees.

Nothing of the repository is changed but for a worktree that is asked for, and none of its hooks is run.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from llmsys_exp.errors import UserError
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.git import Repository, find_repository

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
_APPLY = ("apply", "--whitespace=nowarn")


@dataclass(frozen=True)
class Changed:
    """A file that differs between two states of the code."""

    path: str
    added: int
    """Lines; 0 also of files that are no text."""
    removed: int


def code_repository() -> Repository | None:
    """Return the checkout that this program runs from; None of an installed package."""
    root = Path(__file__).resolve().parents[2]
    try:
        return find_repository(root) if (root / ".git").exists() else None
    except EvidenceError:
        return None


def has_commit(repository: Repository, commit: str) -> bool:
    """Whether a repository holds a commit; anything but a full hash is none."""
    if not _COMMIT.fullmatch(commit):
        return False
    try:
        repository.ask("cat-file", "-e", f"{commit}^{{commit}}")
    except EvidenceError:
        return False
    return True


def changed_between(
    repository: Repository, then: tuple[str, Path | None], now: tuple[str, Path | None]
) -> list[Changed]:
    """Return the files that differ between two states, each a full commit hash and a patch on top or None.

    Raises:
        EvidenceError: when a patch does not go with its commit.
    """
    with TemporaryDirectory(prefix="llmsys-trees-") as scratch:
        variables = _aside(repository, Path(scratch))
        trees = [_tree(repository, commit, patch, variables) for commit, patch in (then, now)]
        arguments = ("diff-tree", "-r", "--numstat", "--no-renames", "-z", *trees)
        listed = repository.ask(*arguments, variables=variables)
    entries = (os.fsdecode(entry) for entry in listed.split(b"\0") if entry)
    return [_changed(entry) for entry in entries]


def add_worktree(repository: Repository, folder: Path, commit: str, patch: Path | None) -> None:
    """Lay out a commit with a patch in a new folder.

    Raises:
        UserError: when git refuses; the folder is gone then.
    """
    try:
        repository.ask("worktree", "prune")
        repository.ask(*_NO_HOOKS, "worktree", "add", "--detach", str(folder), commit)
        if patch is not None:
            # with the index, so that new files belong to the tree although run folders lie in ignored places
            Repository(folder, commit).ask(*_APPLY, "--index", str(patch.resolve()))
    except EvidenceError as error:
        remove_worktree(repository, folder)
        raise UserError(
            f"The code of then cannot be laid out: {error}",
            where=f"commit {commit[:12]}" + ("" if patch is None else f" with {patch.name}"),
            do="Leave --code out to run it with the code of now",
        ) from error


def remove_worktree(repository: Repository, folder: Path) -> None:
    """Remove a worktree and git's note of it; one that is not there is no error."""
    try:
        repository.ask("worktree", "remove", "--force", str(folder))
    except EvidenceError:
        return


def move_worktree(repository: Repository, folder: Path, target: Path) -> None:
    """Move a worktree to where it is kept.

    Raises:
        EvidenceError: when git refuses.
    """
    repository.ask("worktree", "move", str(folder), str(target))


def _aside(repository: Repository, scratch: Path) -> dict[str, str]:
    """Variables with which git writes into a folder of ours and reads the repository's objects."""
    (scratch / "objects").mkdir()
    return {
        "GIT_INDEX_FILE": str(scratch / "index"),
        "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(repository.path("objects").resolve()),
    }


def _tree(repository: Repository, commit: str, patch: Path | None, variables: dict[str, str]) -> str:
    repository.ask("read-tree", commit, variables=variables)
    if patch is not None and patch.stat().st_size:
        repository.ask(*_APPLY, "--cached", str(patch.resolve()), variables=variables)
    return os.fsdecode(repository.ask("write-tree", variables=variables)).strip()


def _changed(entry: str) -> Changed:
    added, removed, path = entry.split("\t", 2)
    return Changed(path, _count(added), _count(removed))


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0
