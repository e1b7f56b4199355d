"""Ways to start SGLang for given prompts, from what serves them best down to what needs least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmsys_exp.config.schema import AUTO, Config, SglangConfig
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.serving_case import Demand, sglang_case
from llmsys_exp.plan.serving_work import Work
from planner.serving.advice import SMALL_CHUNK
from planner.serving.case import ServingCase
from planner.serving.defaults import default_fraction, graph_batch, prefill_tokens
from planner.serving.division import FRACTIONS, SPARE, Engine, divide, engine_of, good_fraction
from planner.serving.forecast import ServingForecast
from planner.serving.headroom import logits_bytes, sort_bytes
from planner.serving.sglang import forecast_sglang
from planner.units import GIB, ceil_div

MOST_RANKS = 16
MOST_REQUESTS = 1024
"""Of one replica, where the user says nothing: an H200 works at full rate below that."""
MOST_REQUESTS_CPU = 32
FEWEST_REQUESTS = 16
PICKING_SHARE = 1 / 8
"""Of the KV pool, what room for picking tokens may come to: above it, the pool gets it and fewer run."""
CPU_FRACTIONS = (0.2, 0.95)
"""Spare beside twice weights and pool, and the most, of main memory: others may have a part of it by then."""


@dataclass(frozen=True)
class Trial:
    """One way to start the engine, and what the planner says of it."""

    case: ServingCase
    forecast: ServingForecast
    safe_fraction: float | None
    """Largest that leaves what runs its room, however short the answers are. None: none does."""


def replicas(config: Config, work: Work) -> Iterator[tuple[int, int]]:
    """Yield tp_size and dp_size, from few GPUs a replica to many."""
    settings = config.inference.sglang
    gpus = 1 if config.hardware.gpu == CPU else config.hardware.gpus_per_node
    share = gpus if settings.dp_size == AUTO else max(1, gpus // int(settings.dp_size))
    sizes = [int(settings.tp_size)] if settings.tp_size != AUTO else [
        size for size in (1, 2, 4, 8, MOST_RANKS) if size <= share
    ]  # fmt: skip
    for tp in sizes:
        most = max(1, min(gpus // tp, work.prompts))
        yield tp, most if settings.dp_size == AUTO else int(settings.dp_size)


def trials(config: Config, settings: SglangConfig, demand: Demand) -> Iterator[Trial]:
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


def is_balanced(trial: Trial) -> bool:
    """Whether requests at a time are worth the pool that they cost."""
    case, pool = trial.case, trial.forecast.kv_pool_bytes
    requests = case.max_running_requests or 1
    return requests <= FEWEST_REQUESTS or picking_bytes(case, requests) <= PICKING_SHARE * pool


def picking_bytes(case: ServingCase, requests: int) -> int:
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
    return round(min(most, good, 2 * needed / max(1, engine.free_bytes) + spare), 3)
