"""The files a job reads: model folder, data, prompts. Each is found, or its absence explained."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import SHIPPED, shipped_path
from llmsys_exp.config.schema import Config, ModelConfig, Step, Weights
from llmsys_exp.errors import ConfigError, UserError, closest


@dataclass(frozen=True)
class Inputs:
    """What `resolved` in job.json holds; paths are absolute."""

    model_folder: str | None
    train_file: str | None
    heldout_file: str | None
    prompts_file: str | None
    world_size: int
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def find_inputs(config: Config, steps: list[Step]) -> Inputs:
    """Find every file that the steps read.

    Raises:
        ConfigError: naming all that are missing.
    """
    problems: list[UserError] = []
    model_folder = _try(problems, lambda: find_model(config))
    train = heldout = prompts = None
    if Step.train in steps:
        train = _try(problems, lambda: _find_file(config.data.train, "data.train"))
        if config.data.heldout is not None and config.training.evaluate:
            heldout = _try(problems, lambda: _find_file(config.data.heldout, "data.heldout"))
    if Step.infer in steps:
        prompts = _try(problems, lambda: _find_file(config.inference.prompts, "inference.prompts"))
    if problems:
        raise ConfigError(problems)
    hardware = config.hardware
    return Inputs(
        model_folder=model_folder,
        train_file=train,
        heldout_file=heldout,
        prompts_file=prompts,
        world_size=hardware.gpus_per_node * hardware.nodes,
        device="cpu" if hardware.gpu == "cpu" else "cuda",
    )


def find_model(config: Config) -> str | None:
    """Return the model's folder: `model.path`, where `model.package` is converted to, or the hub cache.

    None means that only the shape is needed and transformers may look it up itself.

    Raises:
        UserError: when there is none.
    """
    model = config.model
    if model.path is not None:
        return str(_model_path(model.path))
    if model.package is not None:
        return str(converted_folder(config))
    cached = _hub_snapshot(model)
    if cached is not None:
        return str(cached)
    if model.weights is Weights.random:
        return None
    raise UserError(
        f"The weights of {model.id} are not on this machine",
        where="model.path, model.package and the hub cache",
        do=f"Download them once with `hf download {model.id}`, or give model.path=FOLDER",
    )


def converted_folder(config: Config) -> Path:
    """Return where the weights of `model.package` go."""
    return Path(config.paths.cache).expanduser().absolute() / "models" / str(config.model.package)


def _model_path(text: str) -> Path:
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise UserError("There is no such model folder", where=f"model.path={text}", do=_similar(folder))
    if not (folder / "config.json").is_file():
        raise UserError(
            "The model folder holds no config.json",
            where=f"model.path={text}",
            do="Name a folder in the format of transformers: config.json, weights, tokenizer",
        )
    return folder


def _hub_snapshot(model: ModelConfig) -> Path | None:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    folder = hub / f"models--{model.id.replace('/', '--')}"
    revision = model.revision or "main"
    named = folder / "refs" / revision
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() else None


def _find_file(text: str | None, key: str) -> str:
    if not text:
        raise UserError(f"{key} has no value", do=f"Add {key}=FILE (json or jsonl)")
    path = shipped_path(text)
    if path.is_dir():
        raise UserError("A folder stands where a file is expected", where=f"{key}={text}", do=_listing(path))
    if not path.is_file():
        raise UserError(
            "There is no such file", where=f"{key}={text}", do=_similar(path, shipped=SHIPPED in text)
        )
    if not os.access(path, os.R_OK):
        raise UserError("The file cannot be read", where=f"{key}={text}", do="Mend its permissions")
    return str(path)


def _similar(path: Path, *, shipped: bool = False) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either"
    near = closest(path.name, [child.name for child in path.parent.iterdir()])
    start = f"{SHIPPED}{path.parent.name}/" if shipped else f"{path.parent}/"
    return (
        f"Did you mean {start}{near}?"
        if near
        else "Check the spelling; a relative path starts at the current folder"
    )


def _listing(path: Path) -> str:
    files = sorted(child.name for child in path.iterdir() if child.suffix in (".json", ".jsonl"))
    return f"Name a file in it: {', '.join(files[:8])}" if files else "Name a json or jsonl file"


def _try(problems: list[UserError], find: Any) -> Any:
    try:
        return find()
    except UserError as error:
        problems.append(error)
        return None
