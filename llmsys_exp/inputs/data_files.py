"""Where the rows of a job are: a file, a folder, or a data set in the cache of the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.config.folders import SHIPPED, shipped_path
from llmsys_exp.config.schema import DataConfig
from llmsys_exp.errors import UserError, closest
from llmsys_exp.workers.data.records import FILE_KINDS
from llmsys_exp.workers.data.templates import template_file

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
KINDS = ", ".join(kind[1:] for kind in FILE_KINDS)
PROMPT_KINDS = (*FILE_KINDS, ".txt")
"""Prompts may be plain text too, one a line."""


def data_problems(data: DataConfig) -> list[UserError]:
    """Name data settings that contradict each other, and a template that is not there."""
    problems: list[UserError] = []
    if data.heldout is not None and data.heldout_split:
        given = f"data.heldout_split={data.heldout_split:g} and data.heldout={data.heldout}"
        hint = "Set data.heldout=null or data.heldout_split=0"
        problems.append(UserError(f"{given} both say what is held out", do=hint))
    try:
        if data.template is not None:
            template_file(data.template)
    except UserError as error:
        problems.append(error)
    return problems


def find_data(text: str | None, key: str) -> str | None:
    """Return the path of a data set; None where `datasets` itself must look it up in its cache.

    Raises:
        UserError: when there is none.
    """
    path = shipped_path(text) if text else None
    if text and path and not path.exists() and HUB_ID.fullmatch(text) and path.suffix not in FILE_KINDS:
        return _hub_data(text, key)
    if text and path and path.is_dir():
        return _folder(path, text, key)
    return find_file(text, key)


def find_file(text: str | None, key: str, *, kinds: Sequence[str] = FILE_KINDS) -> str:
    """Return the path of a file with rows.

    Raises:
        UserError: when it is not there, no file, or of no known kind.
    """
    named = ", ".join(kind[1:] for kind in kinds)
    if not text:
        raise UserError(f"{key} has no value", do=f"Add {key}=FILE ({named})")
    path = shipped_path(text)
    if path.is_dir():
        raise UserError("A folder stands where a file is expected", where=f"{key}={text}", do=_listing(path))
    if not path.is_file():
        raise UserError(
            "There is no such file", where=f"{key}={text}", do=similar(path, shipped=SHIPPED in text)
        )
    if path.suffix.lower() not in kinds:
        raise UserError(
            f"Files that end in {path.suffix or path.name!r} are not read",
            where=f"{key}={text}",
            do=f"Give a file of these kinds: {named}",
        )
    if not os.access(path, os.R_OK):
        raise UserError("The file cannot be read", where=f"{key}={text}", do="Mend its permissions")
    return str(path)


def hub_snapshot(kind: str, name: str, *, revision: str | None = None) -> Path | None:
    """Return the folder that the hub's cache keeps of a model (`models`) or data set (`datasets`)."""
    hub = Path(os.environ.get("HF_HUB_CACHE", _hub_home() / "hub"))
    folder = hub / f"{kind}--{name.replace('/', '--')}"
    named = folder / "refs" / (revision or "main")
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision or "main"
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def similar(path: Path, *, shipped: bool = False) -> str:
    """Say what stands near a path that is not there."""
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either"
    near = closest(path.name, [child.name for child in path.parent.iterdir()])
    start = f"{SHIPPED}{path.parent.name}/" if shipped else f"{path.parent}/"
    return (
        f"Did you mean {start}{near}?"
        if near
        else "Check the spelling; a relative path starts at the current folder"
    )


def _hub_data(name: str, key: str) -> str | None:
    snapshot = hub_snapshot("datasets", name)
    if snapshot is not None:
        return str(snapshot)
    cache = Path(os.environ.get("HF_DATASETS_CACHE", _hub_home() / "datasets"))
    if (cache / name.replace("/", "___")).is_dir():
        return None
    raise UserError(
        "There is no such file, and no data set of this name in the cache of the hub",
        where=f"{key}={name}",
        do=f"Download it once with `hf download --repo-type dataset {name}`, or name a file.  "
        f"{similar(shipped_path(name))}",
    )


def _folder(path: Path, text: str, key: str) -> str:
    """A folder with files of rows, or one that `datasets` has saved."""
    saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
    if saved or any(one.suffix in FILE_KINDS for one in path.rglob("*")):
        return str(path)
    raise UserError("The folder holds no data set", where=f"{key}={text}", do=_listing(path))


def _hub_home() -> Path:
    return Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()


def _listing(path: Path) -> str:
    files = sorted(child.name for child in path.iterdir() if child.suffix in FILE_KINDS)
    return f"Name a file in it: {', '.join(files[:8])}" if files else f"Name a file of these kinds: {KINDS}"
