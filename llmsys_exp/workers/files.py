"""Files that are either whole or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write under another name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a sibling of `target` to write to, and put it in the place of `target` when all went well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _partial(target, str(os.getpid()))
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Remove what processes that were killed left of `whole_folder` on this machine."""
    for left in target.parent.glob(_partial(target, "*").name):
        number = left.name.split(".")[-2]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _partial(target: Path, owner: str) -> Path:
    return target.with_name(f".{target.name}.{owner}.tmp")
