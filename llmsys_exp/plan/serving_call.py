"""One `generate` call of transformers: how many prompts it gets, and what it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.resolve import Choice
from llmsys_exp.plan.serving_case import Demand, generation_case, generation_content, in_settings
from llmsys_exp.plan.serving_work import Work
from planner.forecast import SIMULATE
from planner.forecasting import is_unknown
from planner.serving.forecast import GenerationForecast
from planner.serving.generate import TIGHT_SHARE, budget_bytes, forecast_generation, largest_batch
from planner.simulate.quiet import same_environment

ALL = "all"
MOST_AT_ONCE = 64
"""Prompts of a batch on a GPU, where more would fit: the longest answer of a batch holds up the others."""
MOST_AT_ONCE_CPU = 16
NO_LIMIT = "not compared with a limit"
LEAST_PADDED = 2
"""From this batch on prompts are padded, so that what a call needs grows evenly with them."""
HOLDS_UP = "more would fit, but the longest answer of a batch holds up the others"
MOST_THAT_FITS = "the most whose cache and logits fit beside the weights"


@dataclass(frozen=True)
class Call:
    """A call with nothing left open.

    Attributes:
        config: the whole configuration, its batch settled.
        choices: of the batch.
        forecast: None where there is none.
        label: of the verdict.
        content: the case in the case format, for another tier.
        fix: the cheapest change, as overrides.
        notes: what the forecast does not cover.
    """

    config: Config
    choices: tuple[Choice, ...]
    forecast: GenerationForecast | None
    label: str
    content: dict[str, Any] | None = None
    fix: str | None = None
    notes: tuple[str, ...] = ()


def plan_call(config: Config, demand: Demand, *, tell: Callable[[str], None], formula: bool) -> Call:
    """Settle the batch of a call and forecast it.

    Args:
        config: of the whole run.
        demand: what is served, and for which prompts.
        tell: hears what is simulated.
        formula: never simulate, whatever the formula knows.

    Raises:
        planner.CaseError: when the planner refuses it.
    """
    content = generation_content(config, demand, batch_size=1)
    if is_unknown(content) and not formula and config.hardware.gpu != CPU:
        return _simulated_call(config, demand, tell)
    case = generation_case(config, demand, batch_size=1)
    work, budget = demand.work, budget_bytes(case)
    room = None if budget is None else largest_batch(case, int(budget * (1 - TIGHT_SHARE)))
    chosen, reason = _largest(config, work, room)
    settled, batch, count, notes = _settled(config, work, chosen, reason)
    forecast = forecast_generation(replace(case, batch_size=count))
    fix = None if forecast.fits in (None, True) else _fix_of_call(forecast.fix)
    return Call(
        settled,
        batch,
        forecast,
        forecast.label or NO_LIMIT,
        generation_content(config, demand, batch_size=count),
        fix,
        (*notes, *forecast.notes),
    )


def with_batch(config: Config, value: int | str, reason: str) -> tuple[Config, tuple[Choice, ...]]:
    """Settle how many prompts one call gets: as the user says, else `value`."""
    given = config.inference.batch_size
    if given != AUTO:
        return config, (Choice("inference.batch_size", given, "as set", given=True),)
    inference = replace(config.inference, batch_size=value)
    return replace(config, inference=inference), (Choice("inference.batch_size", value, reason, given=False),)


def _settled(
    config: Config, work: Work, chosen: int, reason: str
) -> tuple[Config, tuple[Choice, ...], int, tuple[str, ...]]:
    """The batch as it is set, or as chosen; how many of it one call gets; and notes."""
    settled, batch = with_batch(config, chosen, reason)
    size, notes = settled.inference.batch_size, (work.describe(),)
    if size == ALL:
        notes = (*notes, "all: continuous batching takes what memory is left; one batch is forecast")
    return settled, batch, max(1, chosen if size == ALL else min(int(size), work.prompts)), notes


def _largest(config: Config, work: Work, fitting: int | None) -> tuple[int, str]:
    """The batch of transformers: what fits, within what helps."""
    on_cpu = config.hardware.gpu == CPU
    most = MOST_AT_ONCE_CPU if on_cpu else MOST_AT_ONCE
    if fitting is not None and fitting < most:
        return max(1, fitting), MOST_THAT_FITS
    if work.prompts < most and not work.assumed:
        return work.prompts, "all prompts of the file"
    return most, "keeps the processor busy" if on_cpu else HOLDS_UP


def _fix_of_call(fix: str | None) -> str:
    """The planner's change as overrides, where there is one and a setting for it."""
    if fix is None or "quantization" in fix or "input_tokens" in fix:
        return "a larger GPU, a model that is stored quantised, or inference.engine=sglang over more GPUs"
    return in_settings(fix)


def _simulated_call(config: Config, demand: Demand, tell: Callable[[str], None]) -> Call:
    """The call of a family that no formula knows: of what helps, the batch that three simulations find."""
    work = demand.work

    def simulated(batch: int) -> GenerationForecast:
        tell(f"simulating a batch of {batch} ...")
        return simulate_content(generation_content(config, demand, batch_size=batch))

    most, reason = _largest(config, work, None)
    if config.inference.batch_size == AUTO:
        chosen, forecast = _most_that_fits(most, simulated)
    else:
        _, _, chosen, _ = _settled(config, work, most, reason)
        forecast = simulated(chosen)
    settled, batch, _, notes = _settled(config, work, chosen, reason if chosen == most else MOST_THAT_FITS)
    content = generation_content(config, demand, batch_size=chosen)
    notes = (*notes, *forecast.notes)
    return Call(settled, batch, forecast, forecast.label or NO_LIMIT, content, notes=notes)


def _most_that_fits(
    most: int, simulated: Callable[[int], GenerationForecast]
) -> tuple[int, GenerationForecast]:
    """The largest batch that fits with a little to spare, else the smallest: a line says which to look at."""
    large = simulated(most)
    room = (large.budget_bytes or 0) * (1 - TIGHT_SHARE)
    if large.peak_allocated_bytes <= room or most <= 1:
        return most, large
    small = simulated(min(LEAST_PADDED, most - 1))
    slope = (large.peak_allocated_bytes - small.peak_allocated_bytes) / (most - min(LEAST_PADDED, most - 1))
    batch = int(LEAST_PADDED + (room - small.peak_allocated_bytes) / slope)
    while batch > 1:
        found = small if batch == LEAST_PADDED else simulated(batch)
        if found.peak_allocated_bytes <= room:
            return batch, found
        batch = min(batch - 1, int(batch * room / found.peak_allocated_bytes))
    return 1, simulated(1)


def simulate_content(content: dict[str, Any], *, sglang_python: str | None = None) -> Any:
    """Forecast a served case by running its real code on shapes; each case once in a process.

    Args:
        content: in the case format.
        sglang_python: the interpreter that holds SGLang, where that serves.

    Raises:
        planner.CaseError: for what cannot be simulated, with the reason.
    """
    return _simulated(json.dumps(content, sort_keys=True), sglang_python)


@lru_cache(maxsize=256)
def _simulated(text: str, python: str | None) -> Any:
    with same_environment():
        return planner.predict(json.loads(text), tier=SIMULATE, sglang_python=python)
