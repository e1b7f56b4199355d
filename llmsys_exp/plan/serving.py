"""From a configuration to an inference engine with nothing left open, what it needs and if it can start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.case import CPU, hf_config
from llmsys_exp.plan.resolve import Choice
from llmsys_exp.plan.serving_call import ALL, MOST_AT_ONCE_CPU, NO_LIMIT, plan_call, with_batch
from llmsys_exp.plan.serving_case import (
    TRANSFORMERS,
    Demand,
    fix_of,
    in_settings,
    sglang_content,
    starts_sglang,
)
from llmsys_exp.plan.serving_checks import check_server, check_serving
from llmsys_exp.plan.serving_choices import Started, settle_sglang
from llmsys_exp.plan.serving_work import Work, measure_work
from planner.serving.forecast import GenerationForecast, ServingForecast
from planner.units import ceil_div

PLAIN_ARGUMENTS = (
    "mem_fraction_static", "context_length", "chunked_prefill_size", "cuda_graph_max_bs", "max_total_tokens",
    "kv_cache_dtype", "quantization", "tp_size", "dp_size", "attention_backend", "sampling_backend",
    "schedule_policy",
)  # fmt: skip


@dataclass(frozen=True)
class ServingPlan:
    """An engine with nothing left open, the reasons, and what it will need.

    Attributes:
        config: the whole configuration, its `inference` settled.
        choices: each setting with its reason.
        work: the prompts as far as their bytes tell.
        forecast: of one GPU; None where nothing is started (a server at a URL) or the shape is not known.
        label: `fits`, `tight`, `does not fit`, or that nothing says how much memory there is.
        cause: why it does not fit.
        fix: the cheapest change, as overrides.
        python: interpreter of SGLang's environment.
        notes: what the forecast does not cover.
        content: the case in the case format, for another tier.
    """

    config: Config
    choices: tuple[Choice, ...]
    work: Work
    forecast: ServingForecast | GenerationForecast | None
    label: str
    cause: str | None = None
    fix: str | None = None
    python: str | None = None
    notes: tuple[str, ...] = ()
    content: Mapping[str, Any] | None = None

    @property
    def fits(self) -> bool:
        """Whether the gate lets it pass."""
        return self.label != "does not fit"

    @property
    def arguments(self) -> dict[str, Any]:
        """What an SGLang of our own is started with; empty for other engines.

        `max_running_requests` is of one replica: SGLang gives the whole of it to each.
        """
        if not starts_sglang(self.config):
            return {}
        settings = self.config.inference.sglang
        return {
            **{key: getattr(settings, key) for key in PLAIN_ARGUMENTS},
            "max_running_requests": ceil_div(int(settings.max_running_requests), int(settings.dp_size)),
            "arguments": dict(settings.arguments),
        }

    def to_dict(self) -> dict[str, Any] | None:
        """Return `serving` of job.json; None where no SGLang is started."""
        if not starts_sglang(self.config):
            return None
        return {
            "arguments": self.arguments,
            "forecast": None if self.forecast is None else self.forecast.to_dict(),
            "python": self.python,
        }

    def describe(self) -> dict[str, Any]:
        """Return plain values for `--json` and the manifest."""
        return {
            "engine": self.config.inference.engine,
            "choices": [vars(choice) for choice in self.choices],
            "arguments": self.arguments,
            "work": vars(self.work),
            "forecast": None if self.forecast is None else self.forecast.to_dict(),
            "verdict": {"fits": self.fits, "label": self.label, "cause": self.cause, "fix": self.fix},
            "notes": list(self.notes),
        }


def serving_plan(
    config: Config,
    *,
    prompts_file: str | Path | None,
    python: str | None = None,
    engine_version: str | None = None,
    model_folder: str | Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    formula: bool = False,
) -> ServingPlan:
    """Choose every open setting of the inference engine and forecast what it needs.

    Args:
        config: of the whole run; left as it is.
        prompts_file: absolute; None: a common length is assumed.
        python: interpreter of SGLang's environment, for the record.
        engine_version: of SGLang there. None: the newest that the planner knows.
        model_folder: the folder that will be served, where the configuration names none.
        tell: hears what is simulated, where no formula knows the model.
        formula: simulate nothing.

    Raises:
        ConfigError: naming everything that cannot start or contradicts.
    """
    check_server(config)
    work = measure_work(config, prompts_file)
    if not (starts_sglang(config) or config.inference.engine == TRANSFORMERS):
        return _elsewhere(config, work)
    try:
        demand = Demand(_shape(config, model_folder), work, engine_version)
        if starts_sglang(config):
            plan = _sglang(config, demand)
        else:
            plan = _transformers(config, demand, tell, formula=formula)
    except planner.CaseError as error:
        raise ConfigError([UserError(in_settings(text)) for text in error.problems]) from error
    return replace(plan, python=python, notes=(*plan.notes, *_unused(config)))


def _unused(config: Config) -> tuple[str, ...]:
    """Say that a server is named which this engine does not ask: no refusal, a sweep may compare engines."""
    engine, url = config.inference.engine, config.inference.server.url
    return () if url is None else (f"{url} is not asked: inference.engine={engine} answers here",)


def _shape(config: Config, model_folder: str | Path | None) -> Mapping[str, Any]:
    """The shape that the configuration names, else that of the folder that was found."""
    model = config.model
    if model.entry is None and model.path is None and model_folder is not None:
        config = replace(config, model=replace(model, path=str(model_folder)))
    return hf_config(config)


def _sglang(config: Config, demand: Demand) -> ServingPlan:
    check_serving(config, demand)
    started = settle_sglang(config, demand)
    settled, batch = with_batch(config, ALL, "SGLang itself decides how many it answers at a time")
    inference = replace(settled.inference, sglang=started.settings)
    label, cause, fix = _verdict(config, started)
    return ServingPlan(
        config=replace(config, inference=inference),
        choices=(*started.choices, *batch),
        work=demand.work,
        forecast=started.forecast,
        label=label,
        cause=cause,
        fix=fix,
        notes=(demand.work.describe(), *_notes(config, started, demand.engine_version)),
        content=sglang_content(config, started.settings, demand, requests=started.case.max_running_requests),
    )


def _verdict(config: Config, started: Started) -> tuple[str, str | None, str | None]:
    forecast, settings = started.forecast, config.inference.sglang
    cause, least = forecast.cause, forecast.minimum_mem_fraction_static
    given = settings.mem_fraction_static != AUTO
    if cause and given and least is not None and least > forecast.mem_fraction_static:
        cause = f"{cause}; the smallest that starts is {least:g}"
    fix = fix_of(started.case, forecast.fix, fraction_given=given, gpus=config.hardware.gpus_per_node)
    if config.hardware.gpu == CPU and cause is not None:
        # more ranks or other kernels are no way out there, and any engine holds the weights
        held = forecast.weights_bytes < forecast.free_before_weights_bytes
        fix = f"inference.engine={TRANSFORMERS}" if held else None
    return forecast.label, cause, fix


def _notes(config: Config, started: Started, engine_version: str | None) -> list[str]:
    notes = list(started.forecast.notes)
    if engine_version is None:
        notes.append(f"no SGLang was looked at: defaults of {started.case.engine_version} are assumed")
    if config.hardware.gpu == CPU:
        notes.append("on the CPU only weights and KV pool are planned")
    unused = config.hardware.gpus_per_node - started.case.tp_size * started.case.dp_size
    if unused > 0 and config.hardware.gpu != CPU:
        notes.append(f"{unused} of {config.hardware.gpus_per_node} GPUs stay idle")
    return notes


def _transformers(
    config: Config, demand: Demand, tell: Callable[[str], None], *, formula: bool
) -> ServingPlan:
    work = demand.work
    try:
        check_serving(config, demand)
        call = plan_call(config, demand, tell=tell, formula=formula)
    except planner.CaseError as error:  # the worker may know a family that the planner does not
        settled, batch = with_batch(config, MOST_AT_ONCE_CPU, "keeps the processor busy")
        return ServingPlan(settled, batch, work, None, NO_LIMIT, notes=(f"no forecast: {error}",))
    cause = None if call.forecast is None else call.forecast.cause
    return ServingPlan(
        call.config,
        call.choices,
        work,
        call.forecast,
        call.label,
        cause,
        call.fix,
        notes=call.notes,
        content=call.content,
    )


def _elsewhere(config: Config, work: Work) -> ServingPlan:
    """A server that somebody else has started: nothing to plan but how much it gets at a time."""
    settled, batch = with_batch(config, ALL, "the server itself decides how many it answers at a time")
    return ServingPlan(settled, batch, work, None, NO_LIMIT, notes=(work.describe(),))
