"""Reads an entry of a LLaMA-Factory dataset_info.json into our own data settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import DataConfig, DataFormat
from llmsys_exp.errors import UserError, closest, unknown_name
from llmsys_exp.workers.data.shapes import SYSTEM_SPEAKER

COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": "history",
    "messages": "conversations",
    "system": "system",
    "chosen": "chosen",
    "rejected": "rejected",
}
"""Names of columns: theirs, ours."""

TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": SYSTEM_SPEAKER,
}
FORMATS = {"alpaca": DataFormat.alpaca, "sharegpt": DataFormat.sharegpt, "openai": DataFormat.sharegpt}
OPENAI = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}
KEYS = ("file_name", "hf_hub_url", "formatting", "ranking", "subset", "split", "columns", "tags")
NOT_OURS = {
    "ms_hub_url": "ModelScope is not read",
    "om_hub_url": "Modelers is not read",
    "script_url": "scripts that load data are not run",
    "cloud_file_name": "files in a cloud are not read",
    "folder": "folders inside of hub data sets are not chosen",
    "num_samples": "rows are not sampled; data.limit takes the first ones",
}
REFUSED_COLUMNS = ("tools", "images", "videos", "audios", "kto_tag")


def settle_data(data: DataConfig) -> DataConfig:
    """Return the settings with paths made absolute and everything filled in that `dataset_info` says.

    Raises:
        UserError: when the file cannot be used, has no such entry, or asks for what there is not.
    """
    settled = deepcopy(data)
    if settled.template is not None and settled.template.endswith(".jinja"):
        settled.template = str(Path(settled.template).expanduser().absolute())
    if settled.dataset_info is None:
        return settled
    if settled.train is not None:
        raise UserError(
            f"data.train={settled.train} and data.dataset_info both say what to learn from",
            do="Add data=llama_factory, which leaves it to data.dataset_info, or set data.train=null",
        )
    file = Path(settled.dataset_info).expanduser().absolute()
    entry = _entry(file, settled.name)
    where = f"{file}, {settled.name}"
    _check(entry, where)
    settled.train = _source(entry, file, where)
    settled.subset = settled.subset or entry.get("subset")
    settled.split = entry.get("split", settled.split)
    columns = {**_tags(entry, where), **_columns(entry, where)}
    if settled.format is DataFormat.auto:
        settled.format = _format(entry, columns)
    if settled.format is DataFormat.text:
        columns = {"text": columns["instruction"]}
    settled.columns = {**columns, **settled.columns}
    settled.dataset_info = str(file)
    return settled


def _entry(file: Path, name: str) -> Mapping[str, Any]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file cannot be read: {error}", where=f"data.dataset_info={file}") from None
    except json.JSONDecodeError as error:
        raise UserError("Not valid JSON", where=f"{file}:{error.lineno}", why=error.msg) from None
    if not isinstance(entries, dict):
        raise UserError("The file must hold one object, with an entry for each data set", where=str(file))
    if name not in entries:
        raise unknown_name("data set", name, list(entries), where=f"data.name, {file}")
    if not isinstance(entries[name], dict):
        raise UserError("The entry must be an object", where=f"{file}, {name}")
    return entries[name]


def _check(entry: Mapping[str, Any], where: str) -> None:
    """Refuse keys that would change what is learnt and mean nothing to us."""
    sources = ("file_name", "hf_hub_url")
    for key in entry:
        if key in KEYS or (key.endswith("_hub_url") and any(one in entry for one in sources)):
            continue
        if key in NOT_OURS:
            raise UserError(f"{key} is not supported", where=where, why=NOT_OURS[key].capitalize())
        near = closest(key, KEYS)
        hint = f"Did you mean {near}?  " if near else ""
        raise UserError(
            f"{key!r} is not a key of an entry", where=where, do=f"{hint}Known: {', '.join(KEYS)}"
        )
    formatting = entry.get("formatting", "alpaca")
    if formatting not in FORMATS:
        raise unknown_name("formatting", str(formatting), list(FORMATS), where=where)


def _source(entry: Mapping[str, Any], file: Path, where: str) -> str:
    if entry.get("hf_hub_url"):
        return str(entry["hf_hub_url"])
    if entry.get("file_name"):
        return str(file.parent / entry["file_name"])
    raise UserError("The entry names no data", where=where, do="Add file_name or hf_hub_url")


def _columns(entry: Mapping[str, Any], where: str) -> dict[str, str]:
    given = entry.get("columns") or {}
    refused = next((one for one in REFUSED_COLUMNS if given.get(one)), None)
    if refused:
        raise UserError(f"The column {refused!r} is not supported", where=where, do="Choose data without it")
    return _renamed(given, COLUMNS, "column", where)


def _tags(entry: Mapping[str, Any], where: str) -> dict[str, str]:
    base = OPENAI if entry.get("formatting") == "openai" else {}
    return {**base, **_renamed(entry.get("tags") or {}, TAGS, "tag", where)}


def _renamed(given: Mapping[str, Any], names: Mapping[str, str], kind: str, where: str) -> dict[str, str]:
    for theirs in given:
        if theirs not in names:
            raise unknown_name(kind, theirs, list(names), where=where)
    return {names[theirs]: str(column) for theirs, column in given.items() if column}


def _format(entry: Mapping[str, Any], columns: Mapping[str, str]) -> DataFormat:
    if entry.get("ranking"):
        return DataFormat.preference
    found = FORMATS[entry.get("formatting", "alpaca")]
    # a prompt without an answer is how their files say "learn the whole text"
    is_text = found is DataFormat.alpaca and "instruction" in columns and "output" not in columns
    return DataFormat.text if is_text else found
