"""Fills in what is `auto` of an SGLang start: the first trial under which the prompts run, with reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config, SglangConfig
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.resolve import Choice
from llmsys_exp.plan.serving_case import Demand, fp8_cache, in_settings
from llmsys_exp.plan.serving_trials import (
    MOST_REQUESTS,
    MOST_REQUESTS_CPU,
    Trial,
    is_balanced,
    picking_bytes,
    replicas,
    trials,
)
from llmsys_exp.plan.serving_work import MOST_TEMPLATE_TOKENS, Work
from planner.serving.case import ServingCase
from planner.serving.defaults import default_fraction, graph_batch, prefill_tokens
from planner.serving.forecast import ServingForecast
from planner.serving.model import served_model
from planner.units import ceil_div, gib

LEAST_CONTEXT, LEAST_CONTEXT_CPU = 16_384, 512
"""A request table of that length costs tens of MiB, and sweeps over shorter answers share one start."""
PREFIX = "inference.sglang."


@dataclass(frozen=True)
class Started:
    """An SGLang start with nothing left open."""

    settings: SglangConfig
    choices: tuple[Choice, ...]
    case: ServingCase
    forecast: ServingForecast


def settle_sglang(config: Config, demand: Demand) -> Started:
    """Choose every open setting of the engine.

    Raises:
        ConfigError: naming what the planner refuses.
    """
    work = demand.work
    context = _context(config, work, served_model(demand.shape).max_positions)
    asked = replace(config.inference.sglang, context_length=context)
    if config.hardware.gpu == CPU and asked.max_total_tokens is None:
        length = work.mean_tokens + work.new_tokens
        asked.max_total_tokens = max(context, min(MOST_REQUESTS_CPU, work.prompts) * length)
    chosen = _first_that_fits(config, asked, demand)
    return Started(*_recorded(config, work, chosen, asked), chosen.case, chosen.forecast)


def context_tokens(work: Work, most_positions: int, *, least: int) -> int:
    """A power of two that holds the longest prompt and its answer, at most what the model knows."""
    needed = max(least, work.longest_tokens + work.new_tokens)
    return min(most_positions, 1 << (needed - 1).bit_length())


def _context(config: Config, work: Work, most_positions: int) -> int:
    given = config.inference.sglang.context_length
    if given != AUTO:
        return int(given)
    least = LEAST_CONTEXT_CPU if config.hardware.gpu == CPU else LEAST_CONTEXT
    return context_tokens(work, most_positions, least=least)


def _first_that_fits(config: Config, asked: SglangConfig, demand: Demand) -> Trial:
    """Try tensor parallelism from few GPUs to many, and in each the dearest settings first."""
    nearest: list[Trial] = []
    refused: planner.CaseError | None = None
    for tp, dp in replicas(config, demand.work):
        try:
            found = list(trials(config, replace(asked, tp_size=tp, dp_size=dp), demand))
        except planner.CaseError as error:
            refused = error
            continue
        fitting = [trial for trial in found if trial.forecast.fits]
        if fitting:
            return next((trial for trial in fitting if is_balanced(trial)), fitting[-1])
        nearest.append(next((trial for trial in found if trial.forecast.starts), found[0]))
    if nearest:
        return nearest[-1]
    assert refused is not None
    raise ConfigError([UserError(in_settings(text)) for text in refused.problems]) from refused


def _recorded(
    config: Config, work: Work, chosen: Trial, asked: SglangConfig
) -> tuple[SglangConfig, tuple[Choice, ...]]:
    """Write what was chosen into the settings, each with its reason."""
    given, case = config.inference.sglang, chosen.case
    requests = (case.max_running_requests or 1) * case.dp_size
    if given.max_running_requests != AUTO:
        requests = int(given.max_running_requests)
    values = {
        "tp_size": case.tp_size,
        "dp_size": case.dp_size,
        "context_length": case.context_length,
        "max_running_requests": requests,
        "chunked_prefill_size": case.chunked_prefill_size,
        "cuda_graph_max_bs": case.cuda_graph_max_bs,
        "kv_cache_dtype": given.kv_cache_dtype,
        "mem_fraction_static": case.mem_fraction_static,
    }
    reasons = _reasons(config, work, chosen)
    choices = [_choice(key, value, getattr(given, key), reasons[key]) for key, value in values.items()]
    if asked.max_total_tokens != given.max_total_tokens:
        reason = "room for these prompts; on the CPU the pool would take what memory there is"
        choices.append(Choice(f"{PREFIX}max_total_tokens", asked.max_total_tokens, reason, given=False))
        values["max_total_tokens"] = asked.max_total_tokens
    return replace(given, **values), tuple(choices)


def _choice(key: str, value: Any, given: Any, reason: str) -> Choice:
    is_given = given != AUTO
    return Choice(f"{PREFIX}{key}", value, "as set" if is_given else reason, is_given)


def _reasons(config: Config, work: Work, chosen: Trial) -> dict[str, str]:
    case, forecast, on_cpu = chosen.case, chosen.forecast, config.hardware.gpu == CPU
    gpus, fits = (1 if on_cpu else config.hardware.gpus_per_node), forecast.fits
    least = "the fewest GPUs that hold a replica" if fits else "none fits; this one comes nearest"
    return {
        "tp_size": f"{least} ({gib(forecast.weights_bytes):.1f} GiB of weights on each)",
        "dp_size": _replicas_reason(case, gpus, work),
        "context_length": _context_reason(work, case),
        "max_running_requests": _requests_reason(work, case),
        "chunked_prefill_size": _chunk_reason(case),
        "cuda_graph_max_bs": "there are no graphs on the CPU" if on_cpu else _graph_reason(case),
        "kv_cache_dtype": f"the model's; {fp8_cache(case)} would halve it, and may change answers",
        "mem_fraction_static": _fraction_reason(config, chosen),
    }


def _context_reason(work: Work, case: ServingCase) -> str:
    needed = f"the longest prompt ({work.longest_bytes:,} bytes, a token has one at least"
    needed += f"; {MOST_TEMPLATE_TOKENS} for the template) and {work.new_tokens:,} new tokens"
    if case.context_length < work.longest_tokens + work.new_tokens:
        return f"all that the model knows; {needed} may need more"
    if case.context_length == LEAST_CONTEXT:
        return f"enough for {needed}; a shorter one would save next to nothing"
    return f"{needed}, rounded up; sizes the request table"


def _replicas_reason(case: ServingCase, gpus: int, work: Work) -> str:
    if gpus == 1:
        return "there is one GPU"
    if case.dp_size < gpus // case.tp_size:
        return f"no more replicas than prompts ({work.prompts})"
    return f"all {gpus} GPUs, {case.tp_size} to a replica"


def _requests_reason(work: Work, case: ServingCase) -> str:
    share, requests = ceil_div(work.prompts, case.dp_size), case.max_running_requests or 1
    each = f"; {requests:,} in each of {case.dp_size} replicas" if case.dp_size > 1 else ""
    if requests >= share:
        return ("as many as were asked for" if work.assumed else "every prompt of the file at a time") + each
    if requests in (MOST_REQUESTS, MOST_REQUESTS_CPU):
        return f"more at a time are answered no faster{each}"
    size = gib(picking_bytes(case, 2 * requests))
    return f"twice as many would take {size:.1f} GiB of the cache to pick their tokens in{each}"


def _chunk_reason(case: ServingCase) -> str:
    if prefill_tokens(replace(case, chunked_prefill_size=None)) == case.chunked_prefill_size:
        return f"SGLang's own for {case.card.total_mib:,} MiB"
    return "the engine's own would need more activations than there is room for"


def _graph_reason(case: ServingCase) -> str:
    own = graph_batch(replace(case, cuda_graph_max_bs=None))
    if case.cuda_graph_max_bs == own and own != case.max_running_requests:
        return f"SGLang's own for {case.card.total_mib:,} MiB; larger batches run without"
    return "no batch is larger"


def _fraction_reason(config: Config, chosen: Trial) -> str:
    case, forecast, safe = chosen.case, chosen.forecast, chosen.safe_fraction
    if config.hardware.gpu == CPU:
        return "twice weights and pool, as others use main memory too; max_total_tokens bounds the pool"
    own = default_fraction(case)
    if safe is None:
        return "SGLang's own; no fraction leaves activations, logits and graphs their room"
    beside = gib(forecast.free_before_weights_bytes) * (1 - safe)
    reason = f"the largest that leaves what runs its room: {beside:.1f} GiB beside it"
    return f"{reason} (SGLang's own: {own:g})"
