"""The evidence of today, taken as a record takes it: packages, machine, code, files that would be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from llmsys_exp.config.schema import Config, Step
from llmsys_exp.errors import UserError
from llmsys_exp.evidence.code import code_facts
from llmsys_exp.evidence.data_files import data_files, data_paths
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.hashes import HashStore
from llmsys_exp.evidence.machine import machine_facts
from llmsys_exp.evidence.model_files import model_facts, model_files
from llmsys_exp.evidence.packages import installed
from llmsys_exp.evidence.variables import variables
from llmsys_exp.inputs.data_files import PROMPT_KINDS, find_data, find_file
from llmsys_exp.inputs.find import find_model
from llmsys_exp.inputs.image_files import find_images
from llmsys_exp.launch.environment import worker_env
from llmsys_exp.launch.interpreter import interpreter
from llmsys_exp.launch.place import find_place
from llmsys_exp.plan.case_mlp import is_mlp
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.runs.unchanged import user_cache
from llmsys_exp.workers.data.fingerprint import hash_sources

T = TypeVar("T")


@dataclass(frozen=True)
class Now:
    """Sections of a manifest as they would be written now."""

    environment: Mapping[str, Any]
    machine: Mapping[str, Any]
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    engine_packages: Mapping[str, Mapping[str, str]]
    """Role -> packages of an interpreter of its own, where it is there."""


def look(logged: Logged, config: Config) -> Now:
    """Look at everything that a run with these settings would meet; nothing is started or written."""
    python = _or(lambda: interpreter(config), sys.executable)
    told = _or(lambda: installed(python), {"python": None, "packages": {}})
    gpus: tuple[str, ...] = ()
    if config.hardware.gpu != "cpu":
        gpus = _or(lambda: find_place(config, device="cuda", env=os.environ).gpus, ())
    machine = machine_facts(gpus, [])
    machine |= {key: told.get(key) for key in ("cuda", "nccl") if machine.get(key) is None}
    store, inputs = HashStore(user_cache()), _inputs_today(config, logged)
    models = _model_files(config, inputs, store)
    return Now(
        environment={
            "python": told.get("python"),
            "platform": told.get("platform"),
            "packages": told["packages"],
            "variables": _variables(config, python),
        },
        machine=machine,
        data={"files": _same_file(_data_files(config, inputs, store), logged)},
        model={**model_facts(config, inputs), "files": models.get("model", {}), "parts": models},
        engine_packages=_engine_packages(logged),
    )


@contextmanager
def code_now() -> Iterator[tuple[dict[str, Any] | None, Path | None]]:
    """Yield the code of today as a record has it, with a file of its changes, None where there are none."""
    with TemporaryDirectory(prefix="llmsys-code-") as scratch:
        file = Path(scratch) / "code.patch"
        facts = code_facts(file, [])
        yield facts, file if file.is_file() else None


def _variables(config: Config, python: str) -> dict[str, str]:
    device = "cpu" if config.hardware.gpu == "cpu" else "cuda"
    ranks = config.hardware.gpus_per_node if config.steps != [Step.infer] else 1
    return variables(worker_env(config, python=python, device=device, ranks=ranks))


def _inputs_today(config: Config, logged: Logged) -> dict[str, str | None]:
    """Return where files of a run would be read today, as `inputs` of a manifest has them; None: nowhere."""
    data, prompts = config.data, config.inference.prompts
    steps = {step.name for step in config.steps}
    trains = bool(steps & {"train", "parallelism"}) and data.train is not None
    find_train = find_images if is_mlp(config) else lambda text: find_data(text, "data.train")
    asks: dict[str, Callable[[], str | None]] = {"model_folder": lambda: find_model(config)}
    if trains:
        asks["train_file"] = lambda: find_train(data.train)
    if trains and data.heldout is not None and config.training.evaluate:
        asks["heldout_file"] = lambda: find_data(data.heldout, "data.heldout")
    if "infer" in steps:
        asks["prompts_file"] = lambda: find_file(prompts, "inference.prompts", kinds=PROMPT_KINDS)
    adapter = logged.section("inputs").get("adapter_folder")
    found = {name: _or(ask, None) for name, ask in asks.items()}
    return found | {"adapter_folder": adapter}


def _data_files(config: Config, inputs: Mapping[str, Any], store: HashStore) -> dict[str, dict[str, Any]]:
    paths = data_paths(config, inputs)
    found = {
        name: _or(lambda file=file: _hashed(file, store), {}) for name, file in data_files(paths).items()
    }
    for role, text in paths.items():
        if Path(text).is_dir():
            found[role] = {"path": text, "sha256": hash_sources([Path(text)]), "bytes": None}
    return found


def _same_file(found: dict[str, dict[str, Any]], logged: Logged) -> dict[str, dict[str, Any]]:
    """Add roles that no setting names a file for: held-out rows set aside from the training file."""
    known = logged.section("data").get("files") or {}
    of_train = (known.get("train") or {}).get("path")
    for role, was in known.items():
        path = was.get("path") if isinstance(was, Mapping) else None
        if role not in found and path and path == of_train and "train" in found:
            found[role] = found["train"]
    return found


def _model_files(
    config: Config, inputs: Mapping[str, Any], store: HashStore
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return `model`, and `adapter` and `tokenizer` where they are others: files by relative name."""
    folders = _or(lambda: model_files(config, inputs), {})
    return {
        part: {name: _or(lambda file=file: _hashed(file, store), {}) for name, file in files.items()}
        for part, files in folders.items()
    }


def _hashed(path: Path, store: HashStore) -> dict[str, Any]:
    return {"path": str(path), "sha256": store.hash_of(path), "bytes": path.stat().st_size}


def _engine_packages(logged: Logged) -> dict[str, Mapping[str, str]]:
    others, found = logged.section("environment").get("interpreter_of") or {}, dict[str, Mapping[str, str]]()
    for role, told in others.items():
        python = told.get("executable") if isinstance(told, Mapping) else None
        # only an interpreter that is ours to start: a record may name any program
        if python == sys.executable:
            found[role] = installed()["packages"]
    return found


def _or(ask: Callable[[], T], otherwise: Any) -> T | Any:
    """Return what is found; what cannot be found is a drift and no error."""
    try:
        return ask()
    except (UserError, EvidenceError, OSError):
        return otherwise
