"""Rows that a source file names: an entry of a dataset_info.json, a file, or a data set of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.config.folders import SHIPPED
from llmsys_exp.config.schema import DataConfig
from llmsys_exp.errors import UserError
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.inputs.data_files import HUB_ID
from llmsys_exp.inputs.dataset_info import settle_data
from llmsys_exp.workers.data.records import FILE_KINDS

GROUP = "llama_factory"
"""An option of `data` that names no rows of its own."""
INFO = "dataset_info.json"
_UP = 4


def start_data(sheet: Sheet, names: Sequence[str]) -> None:
    """Choose the empty data set under a name that tells what the source learns from."""
    sheet.choose("data", GROUP)
    sheet.put("data.name", "+".join(Path(name).name for name in names) or "none")
    sheet.put("data.score", "none")


def put_several(sheet: Sheet, names: Sequence[str], *, key: str) -> None:
    """Say that a mixture is not read; `plan` needs no rows, and `train` will ask for them."""
    sheet.tell(
        key, f"one data set is read, and this names {len(names)}", "Join the rows into one file and "
            "give data.train=FILE",
        value=list(names),
    )  # fmt: skip


def put_entry(sheet: Sheet, name: str, folder: str, *, key: str) -> None:
    """Take one entry of the dataset_info.json in `folder`, seen from here or from above the source."""
    file = find_beside(sheet.source, Path(folder) / INFO)
    if file is None:
        sheet.tell(
            key, f"its description {Path(folder) / INFO} is not here", "Give data.dataset_info=FILE "
                f"data.name={name}, or data.train=FILE",
            value=name,
        )  # fmt: skip
        return
    try:
        settle_data(DataConfig(name=name, train=None, dataset_info=str(file)))
    except UserError as error:
        sheet.tell(key, str(error), "Give data.train=FILE", value=name)
        return
    sheet.put("data.dataset_info", str(file))


def heldout_file(sheet: Sheet, name: str, folder: str) -> str | None:
    """Return the file of an entry with rows laid out as those to learn from; None where there is none."""
    info, learnt = sheet.settings.get("data.dataset_info"), sheet.settings.get("data.name")
    if info is None or find_beside(sheet.source, Path(folder) / INFO) != Path(info):
        return None
    try:
        held = settle_data(DataConfig(name=name, train=None, dataset_info=info))
        rows = settle_data(DataConfig(name=str(learnt), train=None, dataset_info=info))
    except UserError:
        return None
    same = (held.format, held.columns) == (rows.format, rows.columns)
    return held.train if same and held.train and is_there(Path(held.train)) else None


def put_rows(sheet: Sheet, name: str, *, key: str) -> None:
    """Take a file beside the source, or a data set of the hub by its name."""
    file = find_beside(sheet.source, Path(name))
    if file is not None and not name.startswith(SHIPPED):
        sheet.put("data.train", str(file))
        if file.is_file() and file.suffix.lower() not in FILE_KINDS:
            sheet.tell(
                key, f"files that end in {file.suffix} are not read", "Give data.train=FILE", value=name
            )
        return
    if HUB_ID.fullmatch(name) and "/" in name:
        sheet.put("data.train", name)
        sheet.note(
            f"data: {name} is a name of the hub; `hf download --repo-type dataset {name}` brings it here once"
        )
        return
    sheet.put("data.train", name)
    sheet.note(f"data: there is no file {name} here; give data.train=FILE before training")


def find_beside(source: Path, path: Path) -> Path | None:
    """Return a path that a source names: absolute, from here, or from a folder at or above the source."""
    path = path.expanduser()
    start = (source if source.is_dir() else source.parent).absolute()
    roots = [Path(), start, *list(start.parents)[:_UP]]
    candidates = [path] if path.is_absolute() else [root / path for root in roots]
    return next((one.absolute() for one in candidates if is_there(one)), None)


def is_there(path: Path) -> bool:
    """Return whether a path exists; a text that can be none does not."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long for any file, or with a NUL
        return False
