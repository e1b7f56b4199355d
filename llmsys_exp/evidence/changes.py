"""Which files of a checkout differ from its commit, and which of them go into the patch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from llmsys_exp.evidence.git import Repository
from llmsys_exp.evidence.secrets import holds_secret, is_secret_file

FILE_BYTES = 1 << 20
"""Of a larger file, before or after the change, only the name is kept."""
UNTRACKED_BYTES = 8 << 20
"""Of all new files together."""
TRACKED_BYTES = 64 << 20
"""Of all changed files together, whole: of most of them a few lines go into the patch."""
MOST_FILES = 2000
SOURCES = {
    *(".py", ".pyi", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".jinja", ".j2", ".md", ".rst"),
    *(".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".rs", ".ipynb", ".json", ".jsonl", ".txt"),
}
_REPOSITORY = "160000"
"""Mode of an entry that is a commit of another repository."""
OWN_REPOSITORY = "a repository of its own"
_RAW = ("diff", "--raw", "-z", "--no-renames", "--abbrev=40", "--no-ext-diff", "--ignore-submodules=none")


@dataclass
class Changes:
    """Paths from the root of the checkout."""

    tracked: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Path -> why it is not in the patch."""

    @property
    def taken(self) -> list[str]:
        """All that go into the patch."""
        return [*self.tracked, *self.untracked]

    def leave_out(self, path: str, why: str) -> None:
        """Take a path out of the patch."""
        self.left_out[path] = why
        for paths in (self.tracked, self.untracked):
            if path in paths:
                paths.remove(path)


def find_changes(repository: Repository, skip: Sequence[Path]) -> Changes:
    """Compare a checkout with its commit.

    Args:
        repository: the checkout.
        skip: folders whose untracked files are nobody's source: run folders, caches.
    """
    changes = Changes()
    _tracked(repository, changes)
    _untracked(repository, changes, skip)
    return changes


def _tracked(repository: Repository, changes: Changes) -> None:
    # each entry is ":mode mode blob blob status" and then the path; one amid a merge comes twice
    raw = repository.ask(*_RAW, "HEAD", "--")
    parts = raw.split(b"\0")[:-1]
    entries = {os.fsdecode(path): head.decode("ascii").lstrip(":").split() for head, path in _pairs(parts)}
    before, left = _blob_sizes(repository, {head[2] for head in entries.values()}), TRACKED_BYTES
    for path, (mode, new_mode, blob, *_) in entries.items():
        size = max(before.get(blob, 0), _size(repository.root / path))
        why = OWN_REPOSITORY if _REPOSITORY in (mode, new_mode) else _why_not(path, size)
        if not why and (size > left or len(changes.tracked) == MOST_FILES):
            why = "the patch has no room for more changed files"
        # of a text only what changed goes into the patch, and that is looked at there
        why = why or _content_problem(repository.root / path, only_binary=True)
        if why:
            changes.left_out[path] = why
            continue
        left -= size
        changes.tracked.append(path)


def _untracked(repository: Repository, changes: Changes, skip: Sequence[Path]) -> None:
    raw = repository.ask("ls-files", "--others", "--exclude-standard", "-z")
    paths = [os.fsdecode(one) for one in raw.split(b"\0") if one]
    inside = [one.resolve() for one in skip]
    paths = [one for one in paths if not _is_below(repository.root / one, inside)]
    sizes = {path: _size(repository.root / path) for path in paths}
    # sources first: a folder of small data files must not take their place
    left = UNTRACKED_BYTES
    for path in sorted(paths, key=lambda one: (PurePosixPath(one).suffix not in SOURCES, sizes[one], one)):
        why = OWN_REPOSITORY if path.endswith("/") else _why_not(path, sizes[path])
        if not why and (sizes[path] > left or len(changes.untracked) == MOST_FILES):
            why = "the patch has no room for more new files"
        why = why or _content_problem(repository.root / path, only_binary=False)
        if why:
            changes.left_out[path] = why
            continue
        left -= sizes[path]
        changes.untracked.append(path)
    changes.untracked.sort()


def _why_not(path: str, size_bytes: int) -> str:
    """Say why a file stays out of the patch whatever it holds, or return an empty text."""
    if is_secret_file(path):
        return "named like a file of secrets"
    return f"{size_bytes:,} bytes" if size_bytes > FILE_BYTES else ""


def _content_problem(file: Path, *, only_binary: bool) -> str:
    """Say why what a file holds keeps it out of the patch, or return an empty text."""
    if file.is_symlink() or not file.exists():
        return ""  # a link to somewhere, or gone
    if not file.is_file():
        return "no ordinary file"
    try:
        content = file.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if only_binary and b"\0" not in content:
        return ""
    found = holds_secret(content.decode("latin-1"), suffix=file.suffix.lower())
    return "holds what looks like a secret" if found else ""


def _blob_sizes(repository: Repository, blobs: Iterable[str]) -> dict[str, int]:
    asked = "".join(f"{blob}\n" for blob in blobs if set(blob) != {"0"}).encode()
    if not asked:
        return {}
    lines = repository.ask("cat-file", "--batch-check=%(objectname) %(objectsize)", stdin=asked)
    pairs = (line.split() for line in lines.decode("ascii").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _pairs(parts: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(parts[::2], parts[1::2], strict=True)


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0


def _is_below(file: Path, folders: Iterable[Path]) -> bool:
    return any(file.is_relative_to(folder) for folder in folders)
