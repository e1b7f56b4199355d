"""Rows of an axolotl YAML: its data sets, their layout, what is held out, the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.importers.data_sources import put_rows, put_several, start_data
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.workers.data.templates import template_names

TYPES = {
    "alpaca": "alpaca",
    "sharegpt": "sharegpt",
    "chat_template": "auto",
    "completion": "text",
    "input_output": "",
}
"""First word of a data set's `type` -> our format; empty where there is none."""


def put_data(sheet: Sheet) -> None:
    """Map everything that says what is learnt."""
    key = "pretraining_dataset" if sheet.has("pretraining_dataset") else "datasets"
    given = sheet.take(key, [])
    rows = [
        one if isinstance(one, Mapping) else {"path": one}
        for one in (given if isinstance(given, list) else [given])
    ]
    names = [str(one.get("path", "")) for one in rows]
    start_data(sheet, names)
    if len(rows) > 1:
        put_several(sheet, names, key=key)
    elif rows:
        _put_one(sheet, rows[0], key)
    sheet.put("data.max_length", sheet.count("sequence_len", 512))
    sheet.note("sequence_len: axolotl drops rows that are longer; llmsys cuts the prompt, never the answer")
    if sheet.flag("sample_packing"):
        sheet.put("data.packing", True)
    if sheet.flag("group_by_length"):
        sheet.put("data.group_by_length", True)
    if sheet.flag("train_on_inputs"):
        sheet.put("data.train_on_prompt", True)
    _put_heldout(sheet)
    _put_template(sheet)


def _put_one(sheet: Sheet, row: Mapping[str, Any], key: str) -> None:
    files = row.get("data_files")
    put_rows(sheet, str(files if isinstance(files, str) else row.get("path", "")), key=key)
    kind = str(row.get("type") or "").partition(".")[0].partition(":")[0]
    wanted = "text" if key == "pretraining_dataset" else TYPES.get(kind, "")
    if not wanted:
        sheet.tell(
            f"{key}[0].type",
            "llmsys has no such layout of rows",
            "Set data.format and data.columns",
            value=row.get("type"),
        )
    elif wanted != "auto":
        sheet.put("data.format", wanted)
    if row.get("name"):
        sheet.put("data.subset", str(row["name"]))
    if row.get("split"):
        sheet.put("data.split", str(row["split"]))
    if row.get("field_messages"):
        sheet.put("data.columns", {"messages": str(row["field_messages"])})
    taken = ("path", "type", "name", "split", "field_messages", "ds_type", "data_files")
    for other in row:
        if other not in taken and row[other] not in (None, False, ""):
            sheet.tell(
                f"{key}[0].{other}",
                "no setting stands for it",
                "data.columns renames columns and speakers",
                value=row[other],
            )


def _put_heldout(sheet: Sheet) -> None:
    share = sheet.number("val_set_size", 0.0) or 0.0
    if 0 < share < 1:
        sheet.put("data.heldout_split", share)
    elif share >= 1:
        sheet.tell(
            "val_set_size", "held-out rows are given as a share of all", "Set data.heldout_split=SHARE"
        )
    if sheet.has("test_datasets"):
        sheet.tell("test_datasets", "held-out rows are a file", "Give data.heldout=FILE")
    if sheet.has("eval_steps") and sheet.number("eval_steps", 0) >= 1 and 0 < share < 1:  # type: ignore[operator]
        sheet.put("training.evaluate_every", sheet.count("eval_steps"))
    for key in ("evals_per_epoch", "eval_steps", "early_stopping_patience"):
        if (
            sheet.has(key)
            and not (key == "eval_steps" and "training.evaluate_every" in sheet.settings)
            and sheet.given[key]
        ):
            what = (
                "Set training.early_stop_patience" if "early" in key else "Set training.evaluate_every=STEPS"
            )
            sheet.tell(key, "evaluations are counted in steps", what, matters=False)


def _put_template(sheet: Sheet) -> None:
    name = sheet.word("chat_template")
    if name in template_names():
        sheet.put("data.template", name)
        sheet.note(
            f"chat_template: {name} is llmsys's own text of that name; blanks and line ends may differ"
        )
    elif name not in (None, "tokenizer_default"):
        sheet.note(
            f"chat_template: {name} is axolotl's; the tokenizer's own stands in (data.template=FILE.jinja)"
        )
    if sheet.has("default_system_message"):
        sheet.put("data.system", sheet.word("default_system_message"))
