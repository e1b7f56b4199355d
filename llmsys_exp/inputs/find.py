"""What a job reads: model folder, data, prompts. Each is found, or its absence explained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Config, ModelConfig, ModelKind, Step, Weights
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.inputs.data_files import (
    PROMPT_KINDS,
    data_problems,
    find_data,
    find_file,
    hub_snapshot,
    similar,
)
from llmsys_exp.inputs.image_files import find_images
from llmsys_exp.inputs.weight_files import check_weights


@dataclass(frozen=True)
class Inputs:
    """What `resolved` in job.json holds; paths are absolute."""

    model_folder: str | None
    train_file: str | None
    heldout_file: str | None
    prompts_file: str | None
    world_size: int
    device: str
    adapter_folder: str | None = None
    """A trained adapter that is served over `model_folder`."""

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
    if model_folder is not None and config.model.weights is Weights.pretrained:
        _try(problems, lambda: check_weights(Path(model_folder)))
    train = heldout = prompts = None
    if Step.train in steps or Step.parallelism in steps:
        problems += data_problems(config.data)
        if config.model.kind is ModelKind.mlp:
            train = _try(problems, lambda: find_images(config.data.train))
        else:
            train = _try(problems, lambda: find_data(config.data.train, "data.train"))
        if config.data.heldout is not None and config.training.evaluate:
            heldout = _try(problems, lambda: find_data(config.data.heldout, "data.heldout"))
    if Step.infer in steps:
        named = config.inference.prompts
        prompts = _try(problems, lambda: find_file(named, "inference.prompts", kinds=PROMPT_KINDS))
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

    None means that only the shape is needed: of a perceptron, of random weights without files at hand, or of
    a model that transformers may look up.

    Raises:
        UserError: when there is none.
    """
    model = config.model
    if config.model.kind is ModelKind.mlp:
        return None
    if model.path is not None:
        return str(_model_path(model.path))
    if model.package is not None:
        folder = converted_folder(config)
        return str(folder) if _is_converted(folder) or _reads_package(model) else None
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


def conversion(config: Config, python: str) -> list[str] | None:
    """Return the command that converts the weights of `model.package`; None where they are not needed."""
    model = config.model
    if model.package is None or model.path is not None:
        return None
    if not _reads_package(model):
        return None
    return [python, "-m", "llmsys_exp.workers.convert", model.package, str(converted_folder(config))]


def _reads_package(model: ModelConfig) -> bool:
    """Random weights take their shape from the planner's table; a tokenizer that is there already is used."""
    return model.weights is Weights.pretrained or model.entry is None


def _is_converted(folder: Path) -> bool:
    """Whether somebody has converted the package before: the folder appears whole."""
    return (folder / "config.json").is_file()


def _model_path(text: str) -> Path:
    folder = shipped_path(text)
    if not folder.is_dir():
        raise UserError("There is no such model folder", where=f"model.path={text}", do=similar(folder))
    if not (folder / "config.json").is_file():
        raise UserError(
            "The model folder holds no config.json",
            where=f"model.path={text}",
            do="Name a folder in the format of transformers: config.json, weights, tokenizer",
        )
    return folder


def _hub_snapshot(model: ModelConfig) -> Path | None:
    snapshot = hub_snapshot("models", model.id, revision=model.revision)
    return snapshot if snapshot and (snapshot / "config.json").is_file() else None


def _try(problems: list[UserError], find: Any) -> Any:
    try:
        return find()
    except UserError as error:
        problems.append(error)
        return None
