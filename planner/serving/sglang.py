"""The forecast of an SGLang start: default or chosen fraction, division of the card, verdict."""

from __future__ import annotations

import time
from dataclasses import replace

from planner.serving.advice import advise
from planner.serving.case import ServingCase
from planner.serving.defaults import default_fraction, reserve_mib
from planner.serving.division import Division, Engine, divide, engine_of, minimum_fraction
from planner.serving.forecast import ServingForecast
from planner.units import MIB


def forecast_sglang(case: ServingCase) -> ServingForecast:
    """Divide the card as the engine would, and judge it."""
    began = time.perf_counter()
    engine = engine_of(case)
    division = divide(engine, case.mem_fraction_static or default_fraction(case))
    return replace(judged(engine, division), seconds=time.perf_counter() - began)


def judged(engine: Engine, division: Division) -> ServingForecast:
    """Judge a division of the card."""
    case, fraction = engine.case, division.fraction
    load, wanted = division.load, case.concurrency
    advice = advise(engine, division)
    replicas = case.dp_size
    return ServingForecast(
        mem_fraction_static=fraction,
        weights_bytes=engine.weights_bytes,
        kv_bytes_per_token=engine.cell.total_bytes,
        kv_tokens=division.pool.tokens,
        kv_window_tokens=division.pool.window_tokens,
        kv_pool_bytes=division.pool.pool_bytes,
        max_running_requests=division.slots,
        request_table_bytes=division.table_bytes,
        graphs_bytes=engine.graphs_bytes,
        activations_bytes=engine.activations_bytes,
        logits_bytes=division.logits_bytes + division.sort_bytes,
        engine_reserve_bytes=int(reserve_mib(case) * MIB),
        free_before_weights_bytes=engine.free_bytes,
        free_after_start_bytes=division.headroom_bytes,
        starts=division.starts,
        minimum_mem_fraction_static=minimum_fraction(engine),
        good_mem_fraction_static=advice.good_fraction,
        concurrency_mem_fraction_static=minimum_fraction(engine, -(-wanted // replicas)) if wanted else None,
        concurrent_requests=None if load is None else load.requests * replicas,
        concurrent_requests_mean=None if load is None else load.requests_mean * replicas,
        admitted_requests=None if load is None else load.admitted * replicas,
        limited_by=None if load is None else load.limited_by,
        fits=advice.label != "does not fit",
        label=advice.label,
        cause=advice.cause,
        fix=advice.fix,
        gpus=case.tp_size * replicas,
        notes=advice.notes,
    )
