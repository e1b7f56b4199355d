"""Disks: room and rights where runs, caches and temporary files go, and the quota of the home."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.look import Look, output_of
from planner.units import GIB

_SAY = Reporter("disk")
TOO_LITTLE_BYTES, LITTLE_BYTES = 1 * GIB, 20 * GIB
LITTLE_QUOTA = 0.95
FEW_FILES = 10_000
QUOTA_TIMEOUT_S = 5


def check(look: Look) -> Iterator[Finding]:
    """Look at each place that a run writes to."""
    for name, folder, setting in places(look):
        yield _place(name, folder, setting)
    yield from _quota()


def places(look: Look) -> list[tuple[str, Path, str]]:
    """Return what is written where, with what moves it; a place that lies on another is kept."""
    env, home = look.env, Path(os.path.expanduser("~"))
    base = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(env.get("HF_HOME") or base / "huggingface")
    extensions = Path(env.get("TORCH_EXTENSIONS_DIR") or base / "torch_extensions")
    return [
        ("outputs", look.outputs, "paths.outputs=FOLDER"),
        ("cache", look.cache, "paths.cache=FOLDER"),
        ("tmp", Path(env.get("TMPDIR") or tempfile.gettempdir()), "export TMPDIR=FOLDER"),
        ("hub", hub, "export HF_HOME=FOLDER"),
        ("extensions", extensions, "export TORCH_EXTENSIONS_DIR=FOLDER"),
    ]


def _place(name: str, folder: Path, setting: str) -> Finding:
    folder = folder.expanduser().absolute()
    existing = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return _SAY.problem(name, f"{name}: nothing can be written in {existing}", setting)
    try:
        size, files = shutil.disk_usage(existing), os.statvfs(existing)
    except OSError as error:
        return _SAY.problem(name, f"{name}: {folder}: {error.strerror or error}", setting)
    said = f"{name}: {size.free / GIB:.1f} of {size.total / GIB:.0f} GiB free in {folder}"
    if files.f_files and files.f_favail < FEW_FILES:
        return _SAY.problem(name, f"{name}: room for {files.f_favail} more files in {folder}", setting)
    if size.free < TOO_LITTLE_BYTES:
        return _SAY.problem(name, said, setting)
    return _SAY.note(name, said, setting) if size.free < LITTLE_BYTES else _SAY.ok(name, said)


def _quota() -> Iterator[Finding]:
    """The user's quotas, where the system keeps any; `quota -w` has a line a file system."""
    text = output_of(["quota", "-w"], QUOTA_TIMEOUT_S)
    for line in (text or "").splitlines():
        words = [word.rstrip("*") for word in line.split()]
        if len(words) < 4 or not all(word.isdecimal() for word in words[1:4]):
            continue
        used, soft, hard = (int(word) for word in words[1:4])
        limit = hard or soft
        if not limit:
            continue
        said = f"quota of {words[0]}: {used / (1 << 20):.1f} of {limit / (1 << 20):.1f} GiB are used"
        if used >= limit:
            yield _SAY.problem("quota", said, "du -sh ~/.cache/* | sort -h")
        elif used > LITTLE_QUOTA * limit:
            yield _SAY.note("quota", said, "du -sh ~/.cache/* | sort -h")
        else:
            yield _SAY.ok("quota", said)
