"""Checkpoints of a run as folders: which are whole, which is the newest, which may go. No torch here.

`checkpoints/step-00000020/` is complete when it holds `whole.json`, written last, with size and SHA-256 of
every other file and the state of the run. A folder whose name begins with a dot is half-written or on its
way out.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.runs.files import file_hash

MARKER = "whole.json"
SCHEMA_VERSION = 1
SAVING, REMOVING, CONVERTED = ".saving-", ".removing-", ".converted-"
HASH_THREADS = 4
_NAME = re.compile(r"step-(\d{8})")


def folder_name(step: int) -> str:
    """Return what the checkpoint after a step is called; without signs that Hydra would have to have quoted.

    >>> folder_name(20)
    'step-00000020'
    """
    return f"step-{step:08d}"


@dataclass(frozen=True)
class Checkpoint:
    """One folder that claims to be a checkpoint."""

    folder: Path
    step: int

    def marker(self) -> dict[str, Any]:
        """Return what was written last; empty when it is absent or broken."""
        try:
            content = json.loads((self.folder / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def state(self) -> dict[str, Any]:
        """State of the run at that step."""
        return dict(self.marker().get("state") or {})

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(int(one["bytes"]) for one in self.marker().get("files", {}).values())

    def problem(self, *, read_all: bool) -> str:
        """Say what is wrong with the checkpoint, or return an empty text.

        Args:
            read_all: compare the content of every file with its hash, not only its size.
        """
        marker = self.marker()
        files = marker.get("files")
        if not isinstance(files, dict) or not files:
            return f"{MARKER} is missing or broken"
        if marker.get("schema_version") != SCHEMA_VERSION:
            return f"{MARKER} has schema version {marker.get('schema_version')!r}"
        return _size_problem(self.folder, files) or (_hash_problem(self.folder, files) if read_all else "")


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints of a run, newest first, whole or not."""
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(one.name), one) for one in folder.iterdir() if one.is_dir())
    steps = [Checkpoint(one, int(match[1])) for match, one in found if match]
    return sorted(steps, key=lambda one: one.step, reverse=True)


def newest_whole(folder: Path, *, read_all: bool) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, and what is wrong with newer ones."""
    problems = []
    for one in list_checkpoints(folder):
        problem = one.problem(read_all=read_all)
        if not problem:
            return one, problems
        problems.append(f"{one.folder.name}: {problem}")
    return None, problems


def loss_there(checkpoint: Checkpoint) -> float | None:
    """Return the held-out loss that was measured at the step of a checkpoint, if any."""
    progress = checkpoint.state.get("progress", {})
    return progress.get("heldout_loss") if progress.get("evaluated_at") == checkpoint.step else None


def describe_files(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return size and hash of files below a folder."""
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        hashes = list(pool.map(lambda name: file_hash(folder / name), names))
    sizes = [(folder / name).stat().st_size for name in names]
    return {
        name: {"bytes": size, "sha256": digest}
        for name, size, digest in zip(names, sizes, hashes, strict=True)
    }


def file_names(folder: Path) -> list[str]:
    """Return every file below a folder but the marker, as relative names in order."""
    names = (str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    return sorted(name for name in names if name != MARKER)


def to_remove(losses: Mapping[int, float | None], *, keep_last: int, keep_best: int) -> list[int]:
    """Return the steps whose checkpoints may go.

    Args:
        losses: step -> held-out loss measured there; None where none was.
        keep_last: how many of the latest stay.
        keep_best: how many of the lowest loss stay beside them.

    >>> to_remove({10: 2.0, 20: 1.0, 30: 1.5, 40: None}, keep_last=1, keep_best=1)
    [10, 30]
    """
    kept = set(sorted(losses)[-keep_last:])
    measured = sorted((loss, step) for step, loss in losses.items() if loss is not None)
    kept |= {step for _, step in measured[:keep_best]}
    return sorted(set(losses) - kept)


def remove(folder: Path) -> None:
    """Remove a checkpoint; killed half-way, it leaves nothing that looks like one."""
    doomed = folder.with_name(f"{REMOVING}{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    if folder.exists():
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(folder: Path) -> list[str]:
    """Remove what a killed process left half-written or half-removed, and name it."""
    if not folder.is_dir():
        return []
    left = [one for one in folder.iterdir() if one.name.startswith((SAVING, REMOVING, CONVERTED))]
    for one in left:
        shutil.rmtree(one, ignore_errors=True)
    return sorted(one.name for one in left)


def _size_problem(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> str:
    for name, wanted in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != wanted["bytes"]:
            return f"{name} has {size:,} bytes, {wanted['bytes']:,} were written"
    return ""


def _hash_problem(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> str:
    def differs(name: str) -> bool:
        try:
            return file_hash(folder / name) != files[name]["sha256"]
        except OSError:
            return True

    names = list(files)
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        bad = [name for name, wrong in zip(names, pool.map(differs, names), strict=True) if wrong]
    return f"the content of {bad[0]} is not what was written" if bad else ""


def shown_steps(checkpoints: Iterable[Checkpoint]) -> str:
    """Return the steps of checkpoints as text, oldest first."""
    return ", ".join(str(one.step) for one in sorted(checkpoints, key=lambda one: one.step))
