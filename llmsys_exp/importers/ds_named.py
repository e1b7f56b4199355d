"""The DeepSpeed configuration that a trainer's file names: in the file itself, beside it, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.importers.data_sources import find_beside
from llmsys_exp.importers.ds_config import put_ds_config
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.importers.source import read_mapping


def put_named(sheet: Sheet, named: Any, *, wanted: str) -> None:
    """Map what the key `deepspeed` holds onto the sheet; `wanted`: what the user's file is called."""
    if isinstance(named, Mapping):
        put_ds_config(sheet, named, source=sheet.source)
        return
    file = find_beside(sheet.source, Path(str(named)))
    if file is None:
        sheet.tell("deepspeed", "the file is not here, so stage and offload are left to the planner",
                   f"Put it beside {wanted}, or set zero.stage and offload")  # fmt: skip
        return
    put_ds_config(sheet, read_mapping(file), source=file)


def put_none(sheet: Sheet) -> None:
    """Say that the job runs without DeepSpeed: whole on every rank, nothing offloaded."""
    sheet.choose("zero", "stage0")
    sheet.choose("offload", "none")
