"""The card divided at one fraction: weights, KV pool, request table, and what is left beside them.

Source: SGLang 0.5.17 and 0.5.23 `srt/mem_cache/kv_cache_configurator.py: _profile_available_bytes`. The
fraction is of the memory that is free before the weights load, not of the card.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.serving.case import ServingCase
from planner.serving.defaults import graph_batch, request_slots
from planner.serving.formats import UNQUANTISED
from planner.serving.headroom import (
    activation_bytes,
    graph_bytes,
    logits_bytes,
    request_table_bytes,
    sort_bytes,
)
from planner.serving.kv import Cell, Pool, budget_for, holds_a_request, pool_of, token_cell
from planner.serving.requests import Load, load_of, tokens_for
from planner.serving.weights import weight_bytes
from planner.tables import constant_bytes
from planner.units import DTYPE_BYTES, MIB

FRACTIONS = 1000  # the engine rounds its own fraction to three decimals
OLDEST_CAPABILITY = (8, 0)
SLACK_BYTES = 512 * MIB  # what the engine itself keeps for metadata (`reserved_mem = 512`)
SPARE = 2  # a good fraction leaves activations and logits twice their forecast: it is derived, not measured


@dataclass(frozen=True)
class Engine:
    """What does not depend on the fraction."""

    case: ServingCase
    weights_bytes: int
    load_bytes: int
    cell: Cell
    graphs_bytes: int
    activations_bytes: int

    @property
    def free_bytes(self) -> int:
        """Free on the card before the weights load."""
        return self.case.card.free_bytes


@dataclass(frozen=True)
class Division:
    """The card divided at one fraction."""

    fraction: float
    pool: Pool
    slots: int
    table_bytes: int
    headroom_bytes: int
    logits_bytes: int
    sort_bytes: int
    starts: bool
    load: Load | None
    rows: int
    """Requests whose tokens are picked in one step."""

    def leaves(self, activations_bytes: int) -> bool:
        """Whether running requests find their room, with some to spare."""
        derived = SPARE * (activations_bytes + self.logits_bytes)
        return self.headroom_bytes >= derived + self.sort_bytes + SLACK_BYTES


def engine_of(case: ServingCase) -> Engine:
    """Work out what does not depend on the fraction."""
    itemsize = DTYPE_BYTES[case.dtype]
    weights = weight_bytes(case.model, case.plan, itemsize, tp=case.tp_size, padded=True)
    load = weights
    if case.plan.online:
        load = weight_bytes(case.model, UNQUANTISED, itemsize, tp=case.tp_size, padded=True)
    rotary = max(case.model.max_positions, case.context_length) * case.model.rotary_width * 4
    beside = rotary + constant_bytes("sglang_loader_gib")
    return Engine(
        case=case,
        weights_bytes=weights + beside,
        load_bytes=max(load, weights) + beside,
        cell=token_cell(case.model, DTYPE_BYTES[case.kv_dtype], case.tp_size),
        graphs_bytes=graph_bytes(case),
        activations_bytes=activation_bytes(case),
    )


def divide(engine: Engine, fraction: float) -> Division:
    """Divide the card as the engine would at this fraction."""
    case, free = engine.case, engine.free_bytes
    budget = int(free * fraction) - engine.weights_bytes
    ratio, page = case.swa_full_tokens_ratio, case.page_size
    pool = pool_of(max(0, budget), engine.cell, ratio=ratio, page=page, most=case.max_total_tokens)
    slots = request_slots(case, pool.tokens)
    table = request_table_bytes(case, slots)
    headroom = free - engine.weights_bytes - pool.pool_bytes - table - engine.graphs_bytes
    load = load_of(case, pool, engine.cell, slots)
    rows = graph_batch(case) if load is None else max(1, min(load.requests_mean, case.concurrency or slots))
    starts = slots > 0 and holds_a_request(pool, engine.cell, page) and headroom > 0
    return Division(
        fraction=fraction,
        pool=pool,
        slots=slots,
        table_bytes=table,
        headroom_bytes=headroom,
        logits_bytes=logits_bytes(case, rows),
        sort_bytes=sort_bytes(case, rows),
        starts=starts and engine.load_bytes <= free and _has_kernels(case),
        load=load,
        rows=rows,
    )


def _has_kernels(case: ServingCase) -> bool:
    """The kernel library holds machine code from compute capability 8.0 on."""
    return case.card.capability is None or case.card.capability >= OLDEST_CAPABILITY


def minimum_fraction(engine: Engine, requests: int = 0) -> float | None:
    """The smallest fraction that starts (or holds so many full-length requests a replica); None: none."""
    case, cell = engine.case, engine.cell
    tokens = tokens_for(case, cell, requests)
    budget = budget_for(tokens, cell, ratio=case.swa_full_tokens_ratio, page=case.page_size)
    step = -(-(engine.weights_bytes + budget) * FRACTIONS // max(1, engine.free_bytes))
    for candidate in range(step, min(step + 3, FRACTIONS)):
        division = divide(engine, candidate / FRACTIONS)
        enough = not requests or (division.load is not None and division.load.requests >= requests)
        if division.starts and enough:
            return candidate / FRACTIONS
    return None


def good_fraction(engine: Engine) -> float | None:
    """The largest fraction that leaves graphs, activations and logits their room; None: none does."""
    low, high = 0, FRACTIONS
    while high - low > 1:
        middle = (low + high) // 2
        if divide(engine, middle / FRACTIONS).leaves(engine.activations_bytes):
            low = middle
        else:
            high = middle
    found = divide(engine, low / FRACTIONS)
    return low / FRACTIONS if low and found.starts else None
