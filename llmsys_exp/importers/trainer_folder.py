"""The output folder of a Trainer: what its JSON and YAML files tell. A pickle in it stays shut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers import llama_factory, training_arguments
from llmsys_exp.importers.imported import Imported
from llmsys_exp.importers.logs.state_file import read_state
from llmsys_exp.importers.models import put_model
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.importers.source import read_mapping
from llmsys_exp.plan.method_case import STORED_KEYS

NAME = "trainer_folder"
ADAPTER = "adapter_config.json"
STATE = "trainer_state.json"
LLAMA_FACTORY = ("training_args.yaml", "llamaboard_config.yaml")
ARGUMENTS = ("training_args.json", "training_arguments.json", "args.json")
LORA = {"target_modules": "targets", "r": "r", "alpha": "alpha", "dropout": "dropout", "use_dora": "use_dora",
        "use_rslora": "use_rslora", "modules_to_save": "modules_to_save"}  # fmt: skip
DUMP = (
    "python -c 'import torch, json; "
    'print(json.dumps(torch.load("training_args.bin", weights_only=False).to_dict()))\''
)


def read(path: Path, content: Any, sheet: Sheet) -> Imported:
    """Map what the files of the folder say.

    Raises:
        UserError: when it is no such folder.
    """
    own = next((path / name for name in LLAMA_FACTORY if (path / name).is_file()), None)
    if own is not None and own.name == LLAMA_FACTORY[0]:
        settings = read_mapping(own)
        return llama_factory.read(own, settings, Sheet(settings, own, model=sheet.shape))
    if not any((path / name).is_file() for name in (STATE, ADAPTER, *ARGUMENTS)):
        raise UserError(
            "The folder is no output of a Trainer",
            where=str(path),
            why=f"Looked for {STATE}, {ADAPTER} and {ARGUMENTS[0]}",
        )
    return _from_parts(path, sheet)


def _from_parts(path: Path, empty: Sheet) -> Imported:
    arguments = next((path / name for name in ARGUMENTS if (path / name).is_file()), None)
    given = read_mapping(arguments) if arguments else {}
    state = read_state(path / STATE) if (path / STATE).is_file() else {}
    sheet = Sheet({**_from_state(state), **given}, path, model=empty.shape)
    _put_model_and_adapter(sheet, path)
    if arguments is None:
        _tell_pickle(sheet, path)
    training_arguments.put_arguments(sheet)
    logs = [path / name for name in (STATE, "trainer_log.jsonl") if (path / name).is_file()]
    return sheet.done(NAME, logs=logs)


def _from_state(state: dict[str, Any]) -> dict[str, Any]:
    """What a state tells of the arguments; the highest rate of the log stands for the one asked for."""
    rates = [
        float(one["learning_rate"]) for one in state.get("log_history", [])
        if isinstance(one, dict) and isinstance(one.get("learning_rate"), (int, float))
    ]  # fmt: skip
    found = {
        "per_device_train_batch_size": state.get("train_batch_size"),
        "num_train_epochs": state.get("num_train_epochs"),
        "max_steps": state.get("max_steps"),
        "logging_steps": state.get("logging_steps"),
        "learning_rate": max(rates) if rates else None,
    }
    return {key: value for key, value in found.items() if value not in (None, 0)}


def _put_model_and_adapter(sheet: Sheet, path: Path) -> None:
    if (path / ADAPTER).is_file():
        stored = read_mapping(path / ADAPTER)
        base = stored.get("base_model_name_or_path")
        if base:
            put_model(sheet, str(base), key="base_model_name_or_path")
        sheet.choose("method", "lora")
        for theirs, ours in STORED_KEYS.items():
            value = stored.get(theirs)
            if value not in (None, [], False):
                sheet.put(f"method.lora.{LORA[ours]}", sorted(value) if isinstance(value, list) else value)
        return
    if (path / "config.json").is_file():
        name = read_mapping(path / "config.json").get("_name_or_path")
        put_model(sheet, str(name) if name else str(path), key="_name_or_path")
        sheet.choose("method", "full")


def _tell_pickle(sheet: Sheet, path: Path) -> None:
    sheet.note("settings that trainer_state.json does not hold stand at transformers' defaults; the "
        "learning rate is the highest"
               " of the log")  # fmt: skip
    if (path / "training_args.bin").is_file():
        sheet.tell(
            "training_args.bin", "a pickle, which could run anything, so it is not opened",
            f"Where you trust it: {DUMP} > training_args.json", value="(pickle)",
        )  # fmt: skip
