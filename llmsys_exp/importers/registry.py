"""The formats that are read: one row each, and how a file is recognised by what stands in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError, unknown_name
from llmsys_exp.importers.imported import Imported
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.importers.source import parse_json, parse_yaml, read_text

Reader = Callable[[Path, Any, Sheet], Imported]


@dataclass(frozen=True)
class Format:
    """One source format."""

    name: str
    title: str
    looked_for: str
    """What it is known by, in words."""
    keys: tuple[str, ...] = ()
    """Keys that only this format has; one is enough."""
    module: str = ""

    def reader(self) -> Reader:
        """Import the module that maps it."""
        return import_module(f"llmsys_exp.importers.{self.module or self.name}").read


MAPPINGS = (
    Format(
        "ds_config", "DeepSpeed's ds_config.json", "zero_optimization, train_micro_batch_size_per_gpu "
            "or train_batch_size",
        ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
    ),
    Format(
        "llamafactory", "LLaMA-Factory's training YAML", "finetuning_type, stage or cutoff_len",
        ("finetuning_type", "stage", "cutoff_len", "lora_rank", "dataset_dir", "export_dir", "infer_backend"),
        "llama_factory",
    ),
    Format("axolotl", "axolotl's YAML", "base_model", ("base_model",)),
    Format(
        "training_arguments", "transformers' TrainingArguments as JSON or YAML",
        "per_device_train_batch_size or num_train_epochs",
        ("per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type"),
    ),
)  # fmt: skip
"""Formats that are one mapping; the first with a key in the file is taken."""
SCRIPT = Format(
    "script",
    "a shell script",
    "a line that starts deepspeed, torchrun, accelerate, python or llamafactory-cli",
)
FOLDER = Format("trainer_folder", "an output folder of transformers' Trainer", "trainer_state.json")
FORMATS = {one.name: one for one in (*MAPPINGS, SCRIPT, FOLDER)}
"""Name, as `--format` takes it -> format."""


def read(path: Path | str, format: str | None = None, *, model: Mapping[str, Any] | None = None,
         arguments: tuple[str, ...] = ()) -> Imported:  # fmt: skip
    """Read a configuration of another tool. Nothing in it is executed.

    Args:
        path: a file, or the output folder of a Trainer.
        format: one of `FORMATS`; left out, what stands in the file decides.
        model: Hugging Face configuration of the model, for files that name none.
        arguments: positional arguments of a shell script.

    Raises:
        UserError: when it cannot be read, is of no known format, or asks for what there is not.
    """
    file = Path(path).expanduser().absolute()
    if not file.exists():
        raise UserError("There is no such file", where=str(path))
    if format is not None and format not in FORMATS:
        raise unknown_name("format", format, list(FORMATS), where="--format")
    if file.is_dir():
        _check_kind(format, (FOLDER.name,), file)
        return FOLDER.reader()(file, None, Sheet({}, file, model=model))
    text = read_text(file)
    if _is_script(file, text) if format is None else format == SCRIPT.name:
        sheet = Sheet({}, file, model=model)
        return SCRIPT.reader()(file, (text, arguments), sheet)
    content = parse_json(text, file) if text.lstrip().startswith("{") else parse_yaml(text, file)
    return _mapping(file, content, format, model)


def _mapping(file: Path, content: Any, format: str | None, model: Mapping[str, Any] | None) -> Imported:
    _check_kind(format, tuple(one.name for one in MAPPINGS), file)
    if not isinstance(content, dict):
        raise _unknown(file)
    keys = {str(key) for key in content}
    fitting = [one for one in MAPPINGS if keys & set(one.keys)]
    if not format:
        _check_one(fitting, keys, file)
    found = FORMATS[format] if format else next(iter(fitting), None)
    if found is None:
        raise _unknown(file)
    return found.reader()(file, content, Sheet(content, file, model=model))


def _check_one(fitting: Sequence[Format], keys: set[str], file: Path) -> None:
    """Refuse a file with keys of two tools; the Trainer's arguments are also keys of the others."""
    tools = [one for one in fitting if one.name != "training_arguments"]
    if len(tools) > 1:
        named = " and ".join(f"{next(key for key in one.keys if key in keys)} of {one.name}" for one in tools)
        do = "Take the others out, or name the format that counts with --format"
        raise UserError(f"The file holds {named}", where=str(file), do=do)


def _check_kind(format: str | None, valid: tuple[str, ...], file: Path) -> None:
    if format is not None and format not in valid:
        raise UserError(f"--format {format} does not go with this kind of file", where=str(file),
                        do=f"Give one of {', '.join(valid)}, or leave --format out")  # fmt: skip


def _is_script(file: Path, text: str) -> bool:
    return file.suffix in (".sh", ".bash", ".slurm", ".sbatch") or text.startswith("#!")


def _unknown(file: Path) -> UserError:
    looked = "; ".join(f"{one.title} ({one.looked_for})" for one in FORMATS.values())
    return UserError(
        "The format is not recognised",
        where=str(file),
        why=f"Looked for {looked}",
        do="Name it with --format",
    )
