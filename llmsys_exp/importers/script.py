"""A shell script that trains, read as text: of DeepSpeed-Chat, LLaMA-Factory, axolotl or a Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers import axolotl, deepspeed_chat, llama_factory, training_arguments
from llmsys_exp.importers.accelerate_config import with_accelerate
from llmsys_exp.importers.data_sources import find_beside
from llmsys_exp.importers.imported import Imported, Unmapped
from llmsys_exp.importers.launch_line import LAUNCHERS, Launch, find_launch
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.importers.shell import Found, Shell
from llmsys_exp.importers.shell_condition import UNKNOWN
from llmsys_exp.importers.source import read_mapping

LOG = "training.log"
_TRAINS = (
    "per_device_train_batch_size",
    "model_name_or_path",
    "num_train_epochs",
    "actor_model_name_or_path",
    "base_model",
)


def read(path: Path, content: tuple[str, tuple[str, ...]], sheet: Sheet) -> Imported:
    """Map the one training command of a script.

    Raises:
        UserError: when there is none, more than one, or it stands where only running would tell what it is.
    """
    text, arguments = content
    commands = Shell(arguments).read(text)
    found = [
        (command, launch)
        for command in commands
        if (launch := find_launch(command)) is not None and _trains(launch)
    ]
    if not found:
        raise UserError(
            "No training command is found in the script",
            where=str(path),
            why=f"Looked for {', '.join(LAUNCHERS)} with a program and {' or '.join(_TRAINS[:3])}, or a "
            "YAML to train from",
        )
    distinct = {repr(launch): (command, launch) for command, launch in found}
    if len(distinct) > 1:
        raise UserError(
            f"The script has {len(distinct)} training commands",
            where=str(path),
            do="Keep one of them in a file of its own",
        )
    command, launch = next(iter(distinct.values()))
    _check_known(command, launch, path)
    return _translate(launch, path, sheet)


def _trains(launch: Launch) -> bool:
    if any(str(launch.flags.get(key, True)) != "True" for key in _TRAINS):
        return not launch.program.endswith(("_eval.py", "init.py", "llama_pro.py", "merge.py"))
    return any(name.endswith((".yaml", ".yml", ".json")) for name in launch.files)


def _check_known(command: Found, launch: Launch, path: Path) -> None:
    if not command.sure:
        raise UserError(
            "The training command stands in a loop, a function, or a branch that only running would decide",
            where=str(path),
            do="Write the command with its values into a file of its own; llmsys sweep runs many points",
        )
    unknown = [key for key, value in launch.flags.items() if any(UNKNOWN in one for one in _texts(value))]
    if unknown:
        raise UserError(
            f"What follows --{', --'.join(unknown)} is not known before the script runs", where=str(path),
            why="A script is read, never run: $(...), arrays and variables that are set elsewhere are not "
            "followed", do="Write the values into the script",
        )  # fmt: skip


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _translate(launch: Launch, path: Path, sheet: Sheet) -> Imported:
    files = [name for name in launch.files if name.endswith((".yaml", ".yml", ".json"))]
    if files:
        return _from_file(files[0], launch, path, sheet)
    own = Sheet(launch.flags, path, model=sheet.shape)
    if any(key in launch.flags for key in ("finetuning_type", "stage")):
        result = llama_factory.read(path, launch.flags, own)
        return _with_ranks(result, launch, path)
    if (
        any(key in launch.flags for key in (*deepspeed_chat.OWN, "actor_model_name_or_path"))
        or launch.program == "main.py"
    ):
        deepspeed_chat.check_step(launch.flags, str(path))
        deepspeed_chat.put_flags(own)
        return _with_ranks(own.done(deepspeed_chat.NAME), launch, path)
    return _with_ranks(training_arguments.read(path, launch.flags, own), launch, path)


def _from_file(name: str, launch: Launch, path: Path, sheet: Sheet) -> Imported:
    file = find_beside(path, Path(name))
    if file is None:
        raise UserError(
            f"The script trains from {name}, which is not here", where=str(path), do=f"Import {name} itself"
        )
    content = {
        **read_mapping(file),
        **{key: value for key, value in launch.flags.items() if value is not True},
    }
    reader = axolotl.read if "base_model" in content else llama_factory.read
    result = reader(file, content, Sheet(content, file, model=sheet.shape))
    return _with_ranks(result, launch, path)


def _with_ranks(result: Imported, launch: Launch, path: Path) -> Imported:
    """Add the number of GPUs that the launcher names, and where the script's log may lie."""
    settings: dict[str, Any] = dict(result.settings)
    notes = list(result.notes)
    if launch.gpus is not None:
        settings["hardware.gpus_per_node"] = launch.gpus
        notes = [note for note in notes if "hardware.gpus_per_node=N" not in note]
        batch = (
            int(settings.get("training.micro_batch", 1))
            * int(settings.get("training.grad_accum", 1))
            * launch.gpus
        )
        notes.insert(
            0, f"GPUs: {launch.gpus}, from the command; {batch * (launch.nodes or 1)} sequences a step"
        )
    if launch.nodes is not None and launch.nodes > 1:
        settings["hardware.nodes"] = launch.nodes
    done = Imported(
        result.format,
        path,
        result.groups,
        settings,
        result.unmapped,
        tuple(notes),
        (*result.logs, *_logs(launch.flags, path)),
    )
    return _with_accelerate(done, launch, path)


def _with_accelerate(result: Imported, launch: Launch, path: Path) -> Imported:
    named = launch.own.get("config_file")
    if launch.launcher != "accelerate" or named is None:
        return result
    file = find_beside(path, Path(named))
    if file is not None:
        return with_accelerate(result, read_mapping(file))
    why = "the file is not here, so ranks, FSDP and DeepSpeed are not known"
    missing = Unmapped(
        "--config_file", named, why, "Put it there, or set zero, offload and hardware.gpus_per_node"
    )
    return replace(result, unmapped=(*result.unmapped, missing))


def _logs(flags: Mapping[str, Any], path: Path) -> tuple[Path, ...]:
    folder = flags.get("output_dir")
    found = find_beside(path, Path(str(folder))) if isinstance(folder, str) else None
    places = [
        one / name for one in (found, path.parent) if one is not None for name in (LOG, "trainer_state.json")
    ]
    return tuple(one for one in places if one.is_file())
