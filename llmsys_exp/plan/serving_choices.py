"""Fills in what is `auto` of an SGLang start: the first division of the card under which the prompts run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config, SglangConfig
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.resolve import Choice
from llmsys_exp.plan.serving_case import Demand, in_settings, sglang_case
from llmsys_exp.plan.serving_work import MOST_TEMPLATE_TOKENS, Work
from planner.serving.advice import SMALL_CHUNK
from planner.serving.case import ServingCase
from planner.serving.defaults import default_fraction, graph_batch, prefill_tokens
from planner.serving.division import FRACTIONS, SPARE, Engine, divide, engine_of, good_fraction
from planner.serving.forecast import ServingForecast
from planner.serving.headroom import logits_bytes, sort_bytes
from planner.serving.model import served_model
from planner.serving.sglang import forecast_sglang
from planner.units import GIB, ceil_div, gib

MOST_RANKS = 16
MOST_REQUESTS = 1024
"""Of one replica, where the user says nothing: an H200 works at full rate below that."""
FEWEST_REQUESTS = 16
MOST_REQUESTS_CPU = 32
PICKING_SHARE = 1 / 8
"""Of the KV pool, what room for picking tokens may come to: above it, the pool gets it and fewer run."""
LEAST_CONTEXT = 512
CPU_FRACTIONS = (0.05, 0.95)
"""Spare beside weights and pool, and the most, of main memory."""
PREFIX = "inference.sglang."


@dataclass(frozen=True)
class Trial:
    """One way to start the engine, and what the planner says of it."""

    case: ServingCase
    forecast: ServingForecast
    safe_fraction: float | None
    """Largest that leaves what runs its room, however short the answers are. None: none does."""


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


def context_tokens(work: Work, most_positions: int) -> int:
    """A power of two that holds the longest prompt and its answer, at most what the model knows.

    Powers of two let points of a sweep that differ a little share one start.
    """
    needed = max(LEAST_CONTEXT, work.longest_tokens + work.new_tokens)
    return min(most_positions, 1 << (needed - 1).bit_length())


def _context(config: Config, work: Work, most_positions: int) -> int:
    given = config.inference.sglang.context_length
    return context_tokens(work, most_positions) if given == AUTO else int(given)


def _first_that_fits(config: Config, asked: SglangConfig, demand: Demand) -> Trial:
    """Try tensor parallelism from few GPUs to many, and in each the dearest settings first."""
    nearest: list[Trial] = []
    refused: planner.CaseError | None = None
    for tp, dp in _replicas(config, demand.work):
        try:
            trials = list(_trials(config, replace(asked, tp_size=tp, dp_size=dp), demand))
        except planner.CaseError as error:
            refused = error
            continue
        fitting = [trial for trial in trials if trial.forecast.fits]
        if fitting:
            return next((trial for trial in fitting if _is_balanced(trial)), fitting[-1])
        nearest.append(next((trial for trial in trials if trial.forecast.starts), trials[0]))
    if nearest:
        return nearest[-1]
    assert refused is not None
    raise ConfigError([UserError(in_settings(text)) for text in refused.problems]) from refused


def _replicas(config: Config, work: Work) -> Iterator[tuple[int, int]]:
    settings = config.inference.sglang
    gpus = 1 if config.hardware.gpu == CPU else config.hardware.gpus_per_node
    share = gpus if settings.dp_size == AUTO else max(1, gpus // int(settings.dp_size))
    sizes = [int(settings.tp_size)] if settings.tp_size != AUTO else [
        size for size in (1, 2, 4, 8, MOST_RANKS) if size <= share
    ]  # fmt: skip
    for tp in sizes:
        most = max(1, min(gpus // tp, work.prompts))
        yield tp, most if settings.dp_size == AUTO else int(settings.dp_size)


def _trials(config: Config, settings: SglangConfig, demand: Demand) -> Iterator[Trial]:
    """From what serves the prompts best down to what needs least."""
    asked, dp = settings.max_running_requests, int(settings.dp_size)
    most = MOST_REQUESTS_CPU if config.hardware.gpu == CPU else MOST_REQUESTS
    wanted = min(most, ceil_div(demand.work.prompts, dp)) if asked == AUTO else ceil_div(int(asked), dp)
    case = sglang_case(config, settings, demand, requests=wanted)
    counts = [wanted]
    # a fraction that was given is judged by what is wanted: to run less and less under it helps nobody
    if asked == AUTO and settings.mem_fraction_static == AUTO:
        counts += _fewer(wanted)
    chunks = [prefill_tokens(case)]
    if settings.chunked_prefill_size == AUTO and prefill_tokens(case) > SMALL_CHUNK:
        chunks.append(SMALL_CHUNK)
    elif settings.chunked_prefill_size != AUTO:
        chunks = [int(settings.chunked_prefill_size)]
    for chunk in chunks:
        for count in counts:
            yield _try(config, replace(case, max_running_requests=count, chunked_prefill_size=chunk))


def _fewer(requests: int) -> Iterator[int]:
    while requests > FEWEST_REQUESTS:
        requests = max(FEWEST_REQUESTS, ceil_div(requests, 2))
        yield requests


def _is_balanced(trial: Trial) -> bool:
    """Whether requests at a time are worth the pool that they cost."""
    case, pool = trial.case, trial.forecast.kv_pool_bytes
    requests = case.max_running_requests or 1
    return requests <= FEWEST_REQUESTS or _picking_bytes(case, requests) <= PICKING_SHARE * pool


def _picking_bytes(case: ServingCase, requests: int) -> int:
    """Room that the safe fraction leaves for picking the tokens of so many requests."""
    return SPARE * logits_bytes(case, requests) + sort_bytes(case, requests)


def _try(config: Config, case: ServingCase) -> Trial:
    requests = case.max_running_requests or 1
    if config.inference.sglang.cuda_graph_max_bs == AUTO:
        captured = 1 if config.hardware.gpu == CPU else min(graph_batch(case), requests)
        case = replace(case, cuda_graph_max_bs=captured)
    safe = _safe_fraction(config, case)
    if case.mem_fraction_static is None:
        case = replace(case, mem_fraction_static=default_fraction(case) if safe is None else safe)
    return Trial(case, forecast_sglang(case), safe)


def _safe_fraction(config: Config, case: ServingCase) -> float | None:
    """The planner's good fraction, were all requests to run at once, less the gate's margin."""
    engine = engine_of(replace(case, output_tokens=1, concurrency=None))
    good = good_fraction(engine)
    if good is None:
        return None
    if config.hardware.gpu == CPU:
        return _cpu_fraction(engine, good)
    margin = config.gate.margin_gib * GIB / max(1, case.card.free_bytes)
    return max(1, int((good - margin) * FRACTIONS)) / FRACTIONS


def _cpu_fraction(engine: Engine, good: float) -> float:
    """As much of main memory as weights and pool need: the rest is everybody's."""
    spare, most = CPU_FRACTIONS
    needed = engine.weights_bytes + divide(engine, good).pool.pool_bytes
    return round(min(most, good, needed / max(1, engine.free_bytes) + spare), 3)


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
        "kv_cache_dtype": f"the model's ({case.kv_dtype}); fp8_e5m2 halves it, and may change answers",
        "mem_fraction_static": _fraction_reason(config, chosen),
    }


def _context_reason(work: Work, case: ServingCase) -> str:
    needed = f"the longest prompt ({work.longest_bytes:,} bytes, a token has one at least"
    needed += f"; {MOST_TEMPLATE_TOKENS} for the template) and {work.new_tokens:,} new tokens"
    if case.context_length < work.longest_tokens + work.new_tokens:
        return f"all that the model knows; {needed} may need more"
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
    size = gib(_picking_bytes(case, 2 * requests))
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
        return "weights and pool; the rest of main memory is left alone"
    own = default_fraction(case)
    if safe is None:
        return "SGLang's own; no fraction leaves activations, logits and graphs their room"
    beside = gib(forecast.free_before_weights_bytes) * (1 - safe)
    reason = f"the largest that leaves what runs its room: {beside:.1f} GiB beside it"
    return f"{reason} (SGLang's own: {own:g})"
