"""How the engine of an inference step is started: settled and checked before there is a run folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.inputs.find import Inputs
from llmsys_exp.inputs.weight_files import fingerprint
from llmsys_exp.jobs.gate import judge
from llmsys_exp.launch.interpreter import sglang_interpreter
from llmsys_exp.launch.ports import is_free
from llmsys_exp.launch.sglang import sglang_version
from llmsys_exp.plan import Choice
from llmsys_exp.plan.serving import ServingPlan, serving_plan
from llmsys_exp.plan.serving_case import SGLANG_SERVER, starts_sglang
from llmsys_exp.report.serving_text import serving_lines


@dataclass(frozen=True)
class Served:
    """An inference step with everything settled that its engine is started with."""

    plan: ServingPlan
    engine_key: str

    @property
    def config(self) -> Config:
        """The configuration without `auto`."""
        return self.plan.config

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Each setting of the engine with its reason."""
        return self.plan.choices

    @property
    def content(self) -> dict[str, Any] | None:
        """What `serving` of job.json says: how SGLang is started, if it is."""
        return self.plan.to_dict()

    def facts(self) -> dict[str, Any]:
        """Return what job.json says of the engine."""
        return {"serving": self.content, "engine_key": self.engine_key}


def settle_serving(
    config: Config, inputs: Inputs, *, python: str, gpus: Sequence[str], model: Path | None = None
) -> Served:
    """Find the engine's interpreter, settle its arguments, and name what its start depends on.

    Args:
        config: of the whole run; left as it is.
        inputs: files of the run.
        python: interpreter of the workers.
        gpus: entries of CUDA_VISIBLE_DEVICES.
        model: the folder that the run itself will write and then serve. None: `inputs.model_folder`.

    Raises:
        UserError: for what could not start.
    """
    _check_port(config)
    engine_python = sglang_interpreter(config, python) if starts_sglang(config) else None
    source = model or (Path(inputs.model_folder) if inputs.model_folder else None)
    plan = serving_plan(
        config,
        prompts_file=inputs.prompts_file,
        python=engine_python,
        engine_version=None if engine_python is None else sglang_version(engine_python),
        model_folder=source,
    )
    return Served(plan, engine_key(plan, inputs, source=source, python=python, gpus=gpus))


def check_gate(plan: ServingPlan) -> list[str]:
    """Return warnings to print for an engine that may be started; raises as `gate.judge` does."""
    return judge(
        plan.config.gate.policy, fits=plan.fits, lines=lambda: serving_lines(plan), what="the engine"
    )


def engine_key(
    plan: ServingPlan, inputs: Inputs, *, source: Path | None, python: str, gpus: Sequence[str]
) -> str:
    """Return a text that changes with anything that the start of an engine depends on.

    Not with sampling, prompts, their order, batch size, limit or seed: points of a sweep that differ in those
    alone are answered by one start. Random weights follow the seed, so there it counts.
    """
    config = plan.config
    inference, model = config.inference, config.model
    random = model.weights is Weights.random
    depends = {
        "engine": inference.engine,
        "model": {**to_plain(model), "seed": config.seed if random else None},
        "source": _weights(source),
        "adapter": _weights(Path(inputs.adapter_folder) if inputs.adapter_folder else None),
        "dtype": config.training.dtype.name,
        "attention": config.training.attention,
        "quantization": to_plain(config.method.quantization),
        "server": to_plain(inference.server) if inference.engine == SGLANG_SERVER else None,
        "arguments": plan.arguments,
        "start_timeout_s": inference.sglang.start_timeout_s,
        "engine_python": plan.python,
        "python": python,
        "device": inputs.device,
        "gpus": list(gpus),
        "env": dict(config.launcher.env),
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _weights(folder: Path | None) -> list[str | None]:
    if folder is None or not folder.is_dir():
        return [None if folder is None else str(folder)]
    return [str(folder), fingerprint(folder)]


def check_place(config: Config) -> None:
    """Refuse a run that only answers prompts on several machines.

    Raises:
        UserError: naming the setting.
    """
    if config.hardware.nodes > 1:
        raise UserError(
            "Inference runs on one machine",
            where=f"hardware.nodes={config.hardware.nodes}",
            do="Set hardware.nodes=1 and start a run on each machine, with a part of the prompts",
        )


def _check_port(config: Config) -> None:
    server = config.inference.server
    ours = starts_sglang(config) and config.inference.engine == SGLANG_SERVER
    if ours and server.port is not None and not is_free(server.port):
        raise UserError(
            f"Port {server.port} is in use on this machine",
            where="inference.server.port",
            do="Name another, or leave it out: a free one is found",
        )
