"""Does it fit, and if not, what is the cheapest change that would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.choose import estimate_bytes
from planner.forecast import Forecast, Verdict
from planner.forecasting import forecast_training
from planner.grid.structures import consistent
from planner.search import OFF_BY
from planner.tables import CPU
from planner.training_case import TrainingCase
from planner.uncertainty import upper_required_bytes
from planner.units import gib

Change = tuple[str, TrainingCase]
FSDP2 = "fsdp2"
SETTINGS = {
    "zero_stage": "zero.stage",
    "offload_optimizer": "offload.optimizer",
    "offload_param": "offload.param",
}
"""Field of a case -> its setting."""


def judge(case: TrainingCase, forecast: Forecast, *, budget_bytes: int, remedy: bool = True) -> Verdict:
    """Compare a forecast and its band with what the allocator may reserve on one GPU.

    `remedy` says whether to look for a change that fits, which takes a family that the formula knows.
    """
    largest = next(iter(forecast.components), "nothing")
    fits = forecast.survives(budget_bytes)
    band = forecast.band_bytes("required")
    return Verdict(
        fits=fits,
        label="does not fit" if not fits else "fits" if band[1] <= budget_bytes else "tight",
        budget_bytes=budget_bytes,
        headroom_bytes=budget_bytes - forecast.required_bytes,
        largest=largest,
        largest_bytes=forecast.components.get(largest, 0),
        fix=cheapest_fix(case, budget_bytes=budget_bytes) if remedy and not fits else None,
        band_bytes=band,
    )


def reaching(verdict: Verdict, required_bytes: int) -> Verdict:
    """Widen the band of a verdict to what another tier says the job requires; its label follows."""
    low, high = verdict.band_bytes
    band = (min(low, required_bytes), max(high, required_bytes))
    label = "tight" if verdict.label == "fits" and band[1] > verdict.budget_bytes else verdict.label
    return replace(verdict, band_bytes=band, label=label)


def cheapest_fix(case: TrainingCase, *, budget_bytes: int) -> str | None:
    """The first single change, cheapest in speed and quality first, that brings the job into the budget.

    Estimates choose what is worth playing in full; the answer has been played. One whose whole band fits
    goes before one that fits by its middle alone.
    """
    tight = None
    for text, changed in changes(case):
        if case.engine != FSDP2 and estimate_bytes(changed) > budget_bytes * (1 + OFF_BY):
            continue  # torch's sharding has no estimate: every change is played
        forecast = forecast_training(changed)
        if not forecast.survives(budget_bytes):
            continue
        said = f"{text} (needs {gib(forecast.required_bytes):.1f} GiB)"
        if upper_required_bytes(changed, forecast.required_bytes) <= budget_bytes:
            return said
        tight = tight or said
    return tight


def changes(case: TrainingCase) -> Iterator[Change]:
    """Single changes to a job, cheapest first, named as settings of the configuration."""
    if case.device != CPU and not case.expandable_segments:
        yield "training.expandable_segments=true", replace(case, expandable_segments=True)
    if not (case.gradient_checkpointing or case.architecture.widths):
        yield "training.gradient_checkpointing=true", replace(case, gradient_checkpointing=True)
    yield from _smaller_batches(case)
    if case.engine == "deepspeed":
        yield from _more_sharding(case)
        yield from _offloads(case)
    if case.seq_len > 256:
        yield f"data.max_length={case.seq_len // 2}", replace(case, seq_len=case.seq_len // 2)


def _smaller_batches(case: TrainingCase) -> Iterator[Change]:
    micro = case.micro_batch
    while micro > 1:
        smaller = micro // 2
        accum = case.grad_accum * case.micro_batch // smaller
        changed = replace(case, micro_batch=smaller, grad_accum=accum)
        yield f"training.micro_batch={smaller} training.grad_accum={accum}", changed
        micro = smaller


def _more_sharding(case: TrainingCase) -> Iterator[Change]:
    if case.world_size > 1:
        for stage in range(case.zero_stage + 1, 4):
            yield from _named(case, zero_stage=stage)


def _offloads(case: TrainingCase) -> Iterator[Change]:
    """To main memory: the optimizer alone, then of sharded weights, then these too; each is slower."""
    optimizer = "cpu" if case.offload_optimizer == "none" else case.offload_optimizer
    yield from _named(case, zero_stage=max(case.zero_stage, 2), offload_optimizer=optimizer)
    if case.world_size > 1:
        yield from _named(case, zero_stage=3, offload_optimizer=optimizer)
    if case.offload_param == "none":
        yield from _named(case, zero_stage=3, offload_optimizer=optimizer, offload_param="cpu")


def _named(case: TrainingCase, **fields: int | str) -> Iterator[Change]:
    """The change as settings, unless DeepSpeed does not do it or nothing would change."""
    new = {field: value for field, value in fields.items() if getattr(case, field) != value}
    changed = replace(case, **new)
    if new and consistent(changed):
        yield " ".join(f"{SETTINGS[field]}={value}" for field, value in new.items()), changed
