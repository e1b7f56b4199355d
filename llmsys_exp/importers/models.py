"""Which model a source file means: an option of ours, a folder, or a hub id whose shape has to be found."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import planner
from llmsys_exp.importers.data_sources import is_there
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.inputs.data_files import hub_snapshot
from planner.tables import read_table

LOCAL = "local"
SAME_SHAPE = {
    "NousResearch/Meta-Llama-3-8B": "llama3_1_8b",
    "meta-llama/Meta-Llama-3-8B": "llama3_1_8b",
    "meta-llama/Meta-Llama-3-70B": "llama3_1_70b",
    "mistralai/Mistral-7B-v0.2": "mistral_7b_v0_3",
}
"""Models whose sizes equal those of a row but for positions and a handful of tokens in the vocabulary."""
_TUNED = re.compile(
    r"([-_](instruct|chat|it|base|hf|sft|dpo|pt|zero|bnb|4bit|unsloth|dynamic|\d{4}|v\d+(\.\d+)*))+$",
    re.IGNORECASE,
)


@lru_cache(maxsize=1)
def _rows() -> dict[str, str]:
    """Hub id in lower case -> row of the planner's table."""
    index = read_table("models/index.yaml")
    return {str(row["hub_id"]).lower(): name for name, row in index.items()}


def put_model(sheet: Sheet, name: str, *, key: str, revision: str | None = None) -> None:
    """Set the model, and the sheet's `shape` where it can be found.

    A hub id counts as the row of the planner's table with that id; a fine-tuned model takes the row of the
    model it was made from, which is told.
    """
    if revision not in (None, "main"):
        sheet.put("model.revision", revision)
    folder = _folder(name, sheet.source)
    if folder is not None:
        sheet.choose("model", LOCAL)
        sheet.put("model.id", folder.name)
        sheet.put("model.path", str(folder))
        sheet.shape = _shape(folder / "config.json")
        return
    row = _rows().get(name.lower())
    if row is not None:
        sheet.choose("model", row)
        sheet.shape = planner.model_config(row)
        return
    _by_name(sheet, name, key)


def _by_name(sheet: Sheet, name: str, key: str) -> None:
    sheet.choose("model", LOCAL)
    sheet.put("model.id", name)
    snapshot = hub_snapshot("models", name)
    if snapshot is not None and (snapshot / "config.json").is_file():
        sheet.put("model.path", str(snapshot))
        sheet.shape = _shape(snapshot / "config.json")
        return
    like = row_like(name)
    if like is not None:
        sheet.put("model.entry", like)
        sheet.shape = planner.model_config(like)
        sheet.note(
            f"model: {name} is no row of the planner's table; the shape of {like} stands in, which it "
            "was made from by"
            " its name. model.path=FOLDER takes the real one"
        )
        return
    sheet.tell(
        key,
        "its shape is not in the planner's table, and it is not on this machine",
        f"Download it with `hf download {name}`, then add model.path=FOLDER",
        value=name,
    )


def row_like(name: str) -> str | None:
    """Return the row of the model that one was made from, judged by its name.

    >>> row_like("Qwen/Qwen3-4B-Instruct-2507"), row_like("unsloth/Llama-3.2-1B-Instruct"), row_like("x/y")
    ('qwen3_4b', 'llama3_2_1b', None)
    """
    same = {one.lower(): row for one, row in SAME_SHAPE.items()}
    shorts = {one.rpartition("/")[2]: row for one, row in {**_rows(), **same}.items()}
    short = name.rpartition("/")[2].lower()
    bare = {_TUNED.sub("", one): row for one, row in shorts.items()}
    return shorts.get(short) or bare.get(_TUNED.sub("", short))


def _folder(name: str, source: Path) -> Path | None:
    """A model folder, seen from here or from where the source lies."""
    if not name or "://" in name:
        return None
    beside = source if source.is_dir() else source.parent
    for path in (Path(name).expanduser(), beside / name):
        if is_there(path / "config.json"):
            return path.absolute()
    return None


def _shape(file: Path) -> Mapping[str, Any] | None:
    """A broken file is left to the plan, which says what is wrong with it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
