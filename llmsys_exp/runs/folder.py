"""Run folders: named by time and content, created exclusively, so that no two runs ever share one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.runs.paths import RunPaths

TIME_FORMAT = "%Y-%m-%d_%H-%M-%S"
ON_CREATED: ContextVar[Callable[[Path], None] | None] = ContextVar("ON_CREATED", default=None)
"""Who is told of a run folder as soon as it is there, to find it even if its maker is killed."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def config_hash(config: Mapping[str, Any]) -> str:
    """Return eight hex digits that name a resolved configuration, wherever its files lie."""
    content = {key: value for key, value in config.items() if key != "paths"}
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_name(name: str) -> None:
    """Refuse an experiment name that is not one plain folder name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be the name of a folder",
            where="name",
            do="Use letters, digits, dots, dashes and underscores, beginning with a letter or digit",
        )


def create_run_folder(outputs: Path, name: str, digest: str, *, now: datetime | None = None) -> RunPaths:
    """Create `outputs/name/<time>-<digest>`, with -2, -3, ... behind it when another run was there first.

    Raises:
        UserError: when the place cannot be written to.
    """
    check_name(name)
    paths = RunPaths(_new_folder(outputs / name, digest, now))
    with disk_errors(paths.results):
        paths.results.mkdir()
    tell = ON_CREATED.get()
    if tell is not None:
        tell(paths.folder)
    return paths


def create_sweep_folder(outputs: Path, name: str, digest: str = "") -> Path:
    """Create `outputs/name/<time>-sweep[-<digest>]`, beside the run folders of its points.

    Raises:
        UserError: when the place cannot be written to.
    """
    check_name(name)
    return _new_folder(outputs / name, f"sweep-{digest}" if digest else "sweep", None)


def _new_folder(parent: Path, digest: str, now: datetime | None) -> Path:
    stem = f"{(now or datetime.now()).strftime(TIME_FORMAT)}-{digest}"
    with disk_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in count(1):
            folder = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder.absolute()
    raise AssertionError("unreachable: the count has no end")
