"""Keys of LLaMA-Factory that say what is learnt, and the dataset_info.json they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Config, DataConfig, DataFormat
from llmsys_exp.errors import UserError
from llmsys_exp.importers.writers.exported import Telling
from llmsys_exp.inputs.dataset_info import COLUMNS, TAGS

SAME_TEMPLATES = ("alpaca", "chatml", "gemma", "llama2", "llama3", "mistral", "vicuna", "zephyr")
"""Templates that both have under one name."""
_OPENAI = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
           "system_tag": "system"}  # fmt: skip


def dataset_keys(config: Config, told: Telling, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys, and the entries of a dataset_info.json in `folder`; none where the experiment has one.

    Raises:
        UserError: when no rows are named.
    """
    data = config.data
    names, info = _entries(data, told, folder)
    keys: dict[str, Any] = {
        **names,
        "template": _template(data, told),
        "default_system": data.system,
        "cutoff_len": data.max_length,
        "max_samples": data.limit,
        "val_size": data.heldout_split or None,
        "train_on_prompt": data.train_on_prompt or None,
        "packing": data.packing,
        "neat_packing": data.packing or None,
        "group_by_length": data.group_by_length or None,
    }
    if data.format is DataFormat.text:
        keys |= {"packing": True, "neat_packing": None}
    told.lose_unless("data.score", "none", "LLaMA-Factory has no task score", matters=False)
    if data.heldout_limit is not None:
        told.lose("data.heldout_limit", "max_samples would limit both", matters=False)
    told.notes.append(
        "data: LLaMA-Factory shortens prompt and answer of long rows in proportion; llmsys cuts the "
        "prompt only"
    )
    return keys, info


def _entries(data: DataConfig, told: Telling, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    if data.dataset_info is not None:
        file = Path(data.dataset_info).expanduser().absolute()
        return {"dataset": data.name, "dataset_dir": str(file.parent)}, {}
    if not data.train:
        told.lose(
            "data.train", "no rows are named", "Add a dataset, or set data.train=FILE before the export"
        )
        return {}, {}
    info = {data.name: _entry(data, data.train)}
    keys: dict[str, Any] = {"dataset": data.name, "dataset_dir": str(folder)}
    if data.heldout is not None:
        info[f"{data.name}_heldout"] = _entry(data, data.heldout)
        keys["eval_dataset"] = f"{data.name}_heldout"
    return keys, info


def _entry(data: DataConfig, text: str) -> dict[str, Any]:
    path = shipped_path(text)
    if path.is_dir():
        raise UserError("A folder with a data set is not described to "
            "LLaMA-Factory", where=f"data.train={text}",
                        do="Name a file")  # fmt: skip
    entry: dict[str, Any] = (
        {"file_name": str(path)} if path.is_file() or path.suffix else {"hf_hub_url": text}
    )
    if data.subset:
        entry["subset"] = data.subset
    if data.split != "train":
        entry["split"] = data.split
    return {**entry, **_layout(data)}


def _layout(data: DataConfig) -> dict[str, Any]:
    theirs = {ours: name for name, ours in COLUMNS.items()}
    tags = {ours: name for name, ours in TAGS.items()}
    renamed = {theirs[ours]: column for ours, column in data.columns.items() if ours in theirs}
    tagged = {tags[ours]: column for ours, column in data.columns.items() if ours in tags}
    if data.format is DataFormat.messages:
        return {
            "formatting": "sharegpt",
            "columns": {**renamed, "messages": data.columns.get("messages", "messages")},
            "tags": {**_OPENAI, **tagged},
        }
    if data.format is DataFormat.sharegpt:
        return {
            "formatting": "sharegpt",
            **({"columns": renamed} if renamed else {}),
            **({"tags": tagged} if tagged else {}),
        }
    if data.format is DataFormat.text:
        return {"columns": {"prompt": data.columns.get("text", "text")}}
    return {"columns": renamed} if renamed else {}


def _template(data: DataConfig, told: Telling) -> str | None:
    if data.template is None:
        told.notes.append("template: left out, so that LLaMA-Factory reads the tokenizer's own chat template")
        return None
    if data.template in SAME_TEMPLATES:
        told.notes.append(
            f"template: {data.template} is LLaMA-Factory's own text of that name; blanks and line ends "
            "may differ"
        )
        return data.template
    told.lose("data.template", "LLaMA-Factory has no template of that name or file", "Set template: by hand")
    return None
