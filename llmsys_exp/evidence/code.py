"""The code that ran: commit, branch, and a patch of what the checkout had beside its commit.

Git's index and objects are left as they are: the patch is made with an index and a store of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from llmsys_exp.evidence.changes import Changes, find_changes
from llmsys_exp.evidence.errors import EvidenceError, noted
from llmsys_exp.evidence.git import Repository, find_repository
from llmsys_exp.evidence.secrets import holds_secret
from llmsys_exp.runs.files import publish

PACKAGE = Path(__file__).resolve().parents[1]
PATCH_BYTES = 16 << 20
MOST_NAMED = 100
"""Files left out that are named one by one."""
OF_PROGRAM, OF_FOLDER = "llmsys", "folder"
_DIFF = (
    *("diff", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv"),
    *(
        "--ignore-submodules=all",
        "--unified=3",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--no-relative",
        "HEAD",
    ),
)


def code_facts(
    patch_file: Path, notes: list[str], *, skip: Sequence[Path] = (), folder: Path | None = None
) -> dict[str, Any] | None:
    """Return the code's part of the manifest, and write the patch where there is anything to patch.

    It is about the checkout that llmsys itself runs from; of an installed llmsys, about the one around the
    working folder. Where both are checkouts, the latter is named `beside`, without a patch.

    Args:
        patch_file: where the patch goes; beside it, with a number, where another start's patch is there.
        notes: gets a line for each piece that is missing.
        skip: folders whose untracked files are not looked at.
        folder: the working folder.
    """
    program = noted(notes, "code", _program, None)
    around = noted(notes, "code", lambda: find_repository((folder or Path.cwd()).resolve()), None)
    repository = program or around
    if repository is None:
        return None
    facts = {"of": OF_PROGRAM if program else OF_FOLDER, **_state(repository)}
    changes = noted(notes, "changes of the code", lambda: find_changes(repository, skip), None)
    if changes is None:
        return {**facts, "dirty": None, **_no_patch()}
    dirty = bool(changes.taken or changes.left_out)
    patch = noted(notes, "patch of the code", lambda: make_patch(repository, changes), b"")
    if patch:
        noted(notes, "patch of the code", lambda: check_patch(repository, patch), None)
    facts |= {
        "dirty": dirty,
        **(_patched(_keep(patch_file, patch), patch, changes) if patch else _no_patch()),
    }
    facts["left_out"] = _named(changes.left_out)
    if program and around and around.root != program.root:
        facts["beside"] = _state(around)
    return facts


def make_patch(repository: Repository, changes: Changes) -> bytes:
    """Return what `git apply` turns the commit into the checkout with; empty where nothing changed.

    Files whose change looks like a secret are taken out of `changes`.

    Raises:
        EvidenceError: when git refuses, or all of it is too large.
    """
    with TemporaryDirectory(prefix="llmsys-patch-") as scratch:
        variables = _aside(repository, Path(scratch))
        if changes.untracked:
            named = b"\0".join(map(os.fsencode, changes.untracked))
            from_list = ("--pathspec-from-file=-", "--pathspec-file-nul")
            repository.ask("add", "--intent-to-add", "--force", *from_list, stdin=named, variables=variables)

        def diff(paths: Sequence[str]) -> bytes:
            return repository.ask(*_DIFF, "--", *paths, variables=variables) if paths else b""

        patch = diff(changes.taken)
        if holds_secret(patch.decode("latin-1")):
            # what was removed, or stands beside a change, is in the patch, too
            for path in changes.taken:
                suffix = PurePosixPath(path).suffix.lower()
                if holds_secret(diff([path]).decode("latin-1"), suffix=suffix):
                    changes.leave_out(path, "its change shows what looks like a secret")
            patch = diff(changes.taken)
    if len(patch) > PATCH_BYTES:
        raise EvidenceError(f"{len(patch):,} bytes, and {PATCH_BYTES:,} are the most")
    return patch


def check_patch(repository: Repository, patch: bytes) -> None:
    """Apply a patch to the commit, in an index of its own.

    Raises:
        EvidenceError: when git does not take it.
    """
    with TemporaryDirectory(prefix="llmsys-patch-") as scratch:
        variables = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        repository.ask("read-tree", "HEAD", variables=variables)
        apply = ("apply", "--cached", "--check", "--whitespace=nowarn", "-")
        repository.ask(*apply, stdin=patch, variables=variables)


def _program() -> Repository | None:
    """The checkout that llmsys is part of; one that merely lies around its environment does not count."""
    repository = find_repository(PACKAGE)
    if repository is None:
        return None
    try:
        repository.ask("ls-files", "--error-unmatch", "--", str(PACKAGE / "errors.py"))
    except EvidenceError:
        return None
    return repository


def _aside(repository: Repository, scratch: Path) -> dict[str, str]:
    """Variables with which git writes to a folder of ours instead of the repository."""
    index, objects = repository.path("index"), repository.path("objects")
    if index.is_file():
        shutil.copy2(index, scratch / "index")  # with its time, by which git knows what to look at again
    (scratch / "objects").mkdir()
    return {
        "GIT_INDEX_FILE": str(scratch / "index"),
        "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
    }


def _keep(first: Path, patch: bytes) -> Path:
    """Write the patch under a name of its own, unless an earlier start left the very same."""
    others = (first.with_name(f"{first.stem}.{number}{first.suffix}") for number in count(2))
    for file in chain([first], others):
        if not file.exists():
            publish(file, patch)
            return file
        if file.read_bytes() == patch:
            return file
    raise AssertionError("names never end")


def _state(repository: Repository) -> dict[str, Any]:
    return {"commit": repository.commit, "branch": repository.branch}


def _patched(file: Path, patch: bytes, changes: Changes) -> dict[str, Any]:
    return {
        "patch": file.name,
        "patch_sha256": hashlib.sha256(patch).hexdigest(),
        "untracked": [_plain(path) for path in changes.untracked],
    }


def _no_patch() -> dict[str, Any]:
    return {"patch": None, "patch_sha256": None, "untracked": [], "left_out": []}


def _named(left_out: dict[str, str]) -> list[dict[str, str]]:
    named = [{"path": _plain(path), "why": why} for path, why in list(left_out.items())[:MOST_NAMED]]
    more = len(left_out) - len(named)
    return [*named, {"path": "...", "why": f"{more} more"}] if more else named


def _plain(path: str) -> str:
    """A name as UTF-8: on disk it may be any bytes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
