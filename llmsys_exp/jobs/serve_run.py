"""A finished training run as a model to ask: merged where it was exported, else base and adapter.

The run's own configuration holds, template and tokenizer included; the command line's overrides go on top.
What was chosen for the run's own inference step is chosen anew: it may be served elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import AUTO, Config, Dtype, MethodKind, ModelKind, Step, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.inputs.find import find_model
from llmsys_exp.inputs.weight_files import fingerprint
from llmsys_exp.jobs.resume_overrides import apply_overrides
from llmsys_exp.runs import record
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import state_of

KEY = "run="
BASE_FILE, PEFT_FILE = "base.json", "adapter_config.json"
"""Beside an adapter: which weights it was trained over, as we and as peft wrote it."""
MODEL_SETTINGS = ("model=", "model.path=", "model.package=", "model.id=")


@dataclass(frozen=True)
class TrainedRun:
    """A run folder whose training is finished."""

    paths: RunPaths
    config: Config
    resolved: dict[str, Any]

    def configured(self, overrides: Sequence[str]) -> tuple[Config, str | None]:
        """Return the configuration to ask it with, and the folder of its adapter where it is not merged.

        Raises:
            UserError: where the base is missing or another one, or the engine cannot serve the adapter.
        """
        config = apply_overrides(self.config, overrides, reopens=True)
        if self.paths.merged.is_dir():
            self._take_merged(config, overrides)
            return config, None
        self._take_base(config, overrides)
        _check_base(self.paths.adapter, Path(str(config.model.path)))
        _check_engine(self.paths, config)
        return config, str(self.paths.adapter)

    def _take_merged(self, config: Config, overrides: Sequence[str]) -> None:
        given = [text for text in overrides if text.startswith(MODEL_SETTINGS)]
        if given:
            raise UserError(
                f"{given[0]} does not go with a merged model",
                where=f"run={self.paths.folder}",
                why="It holds base and adapter in one",
                do="Leave it out",
            )
        model = config.model
        model.path, model.package, model.revision, model.tokenizer = str(self.paths.merged), None, None, None
        model.weights = Weights.pretrained
        config.method.kind = MethodKind.full  # whatever it was trained with, it is an ordinary model now

    def _take_base(self, config: Config, overrides: Sequence[str]) -> None:
        model = config.model
        if self.paths.trained_base.is_dir():
            model.path, model.package = str(self.paths.trained_base), None
        elif any(text.startswith(MODEL_SETTINGS) for text in overrides):
            model.path = find_model(config)
        else:
            model.path, model.package = self.resolved.get("model_folder"), None
        if model.path is None or not Path(model.path).is_dir():
            raise UserError(
                "The base model of this run is not on this machine",
                where=model.path or model.id,
                why="Its adapter alone answers nothing",
                do="Name the folder with model.path=FOLDER",
            )
        if model.weights is Weights.random:
            raise UserError(
                "This run trained an adapter over random weights",
                where=f"run={self.paths.folder}",
                why="They are in no file",
                do=f"Merge it first: llmsys export {self.paths.folder}",
            )
        if self.paths.tokenizer.is_dir():
            model.tokenizer = str(self.paths.tokenizer)


def open_run(folder: Path) -> TrainedRun:
    """Read a run folder that is to be served.

    Raises:
        UserError: when it is none, is not finished, or holds no language model.
    """
    where = f"run={folder}"
    if not folder.is_dir():
        raise UserError("There is no such run folder", where=where, do="llmsys runs lists them")
    paths = RunPaths(folder.absolute())
    job = record.read_job(paths, where=where)
    config = from_plain(job["config"])
    if config.model.kind is not ModelKind.causal_lm:
        raise UserError(
            "This run trained a perceptron", where=where, why="It names classes of images and answers nothing"
        )
    if Step.train not in config.steps:
        raise UserError(
            "This run trained nothing",
            where=where,
            why=f"Its steps are {', '.join(step.name for step in config.steps)}",
            do=f"Serve its model itself: llmsys infer model.path={job['resolved'].get('model_folder')}",
        )
    if not paths.result(Step.train.name).is_file() or not (paths.merged.is_dir() or paths.adapter.is_dir()):
        raise UserError(
            f"This run is not finished: {state_of(paths)}",
            where=where,
            do=f"Go on with it: llmsys train resume={folder}",
        )
    return TrainedRun(paths, _reopened(config, job), dict(job["resolved"]))


def split_run(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the run folder and the other arguments.

    Raises:
        UserError: for more than one folder.
    """
    folders = [text.removeprefix(KEY) for text in arguments if text.startswith(KEY)]
    one = folders[0].strip("'\"") if len(folders) == 1 else ""
    folder = Path(one).expanduser().absolute()
    if not one or ("," in one and not folder.exists()):
        do = "llmsys runs lists them; ask each in a command of its own"
        raise UserError("run takes one run folder", do=do)
    return folder, [text for text in arguments if not text.startswith(KEY)]


def _reopened(config: Config, job: dict[str, Any]) -> Config:
    """Open what was chosen for the run's own inference step, and name files by where they were found."""
    config = deepcopy(config)
    chosen = [one["key"] for one in (job.get("plan") or {}).get("choices", ()) if not one["given"]]
    for key in chosen:
        *sections, name = key.split(".")
        if sections[:1] == ["inference"]:
            node: Any = config
            for section in sections:
                node = getattr(node, section)
            setattr(node, name, AUTO)
    if "training.dtype" in chosen:
        config.training.dtype = Dtype.auto  # what suits the training's machine may not suit this one
    if job["resolved"].get("prompts_file"):
        config.inference.prompts = job["resolved"]["prompts_file"]
    config.steps, config.resume = [Step.infer], None
    return config


def _check_base(adapter: Path, base: Path) -> None:
    """Refuse another base than the one that the adapter was trained over."""
    stated = _json(adapter / BASE_FILE)
    wanted, found = stated.get("fingerprint"), fingerprint(base)
    if wanted and found and wanted != found:
        raise UserError(
            "The adapter was trained over another model",
            where=f"{adapter}: {stated.get('model', 'unknown')}; to be served over {base}",
            why="The weights of that model are others",
            do="Set model.path to the model that it was trained over",
        )


def _check_engine(paths: RunPaths, config: Config) -> None:
    """Refuse adapters that SGLang does not apply as peft does."""
    if config.inference.engine == "transformers":
        return
    settings = _json(paths.adapter / PEFT_FILE)
    for key, name in (("use_dora", "DoRA"), ("modules_to_save", "whole modules beside the adapter")):
        if settings.get(key):
            raise UserError(
                f"SGLang does not serve an adapter with {name}",
                where=f"{paths.adapter / PEFT_FILE}: {key}",
                do=f"Merge it first: llmsys export {paths.folder}; or inference.engine=transformers",
            )


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
