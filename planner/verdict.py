"""Does it fit, and if not, what is the cheapest change that would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.forecast import Forecast, Verdict
from planner.shallow import quick_peak_bytes
from planner.tables import CPU
from planner.training_case import Method, TrainingCase
from planner.units import gib

TIGHT_SHARE = 0.03
"""Less headroom than this share of the budget is called tight: the width of the band in which the
emulated allocator has been seen to be wrong about fragments (benchmarks/accuracy.py)."""

Change = tuple[str, TrainingCase]


def judge(case: TrainingCase, forecast: Forecast, *, budget_bytes: int) -> Verdict:
    """Compare a forecast with what the allocator may reserve on one GPU."""
    largest = next(iter(forecast.components), "nothing")
    fits = forecast.survives(budget_bytes)
    headroom = budget_bytes - forecast.required_bytes
    tight = fits and headroom < TIGHT_SHARE * budget_bytes
    return Verdict(
        fits=fits,
        label="tight" if tight else "fits" if fits else "does not fit",
        budget_bytes=budget_bytes,
        headroom_bytes=headroom,
        largest=largest,
        largest_bytes=forecast.components.get(largest, 0),
        fix=None if fits else cheapest_fix(case, budget_bytes=budget_bytes),
    )


def cheapest_fix(case: TrainingCase, *, budget_bytes: int) -> str | None:
    """The first single change, cheapest in speed and quality first, that brings the job into the budget."""
    room = budget_bytes * (1 - TIGHT_SHARE)
    for text, changed in changes(case):
        peak = quick_peak_bytes(changed)
        if peak <= room:
            return f"{text} (about {gib(peak):.1f} GiB)"
    return None


def changes(case: TrainingCase) -> Iterator[Change]:
    """Single changes to a job, cheapest first, named as settings of the configuration."""
    if case.device != CPU and not case.expandable_segments:
        yield "training.expandable_segments=true", replace(case, expandable_segments=True)
    if not case.gradient_checkpointing:
        yield "training.gradient_checkpointing=true", replace(case, gradient_checkpointing=True)
    yield from _smaller_batches(case)
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
    if case.world_size == 1 or case.method is Method.qlora:
        return
    for stage in range(case.zero_stage + 1, 4):
        yield f"zero.stage={stage}", replace(case, zero_stage=stage)


def _offloads(case: TrainingCase) -> Iterator[Change]:
    stage = max(case.zero_stage, 2)
    if case.offload_optimizer == "none":
        changed = replace(case, zero_stage=stage, offload_optimizer="cpu")
        extra = f" zero.stage={stage}" if stage != case.zero_stage else ""
        yield f"offload.optimizer=cpu{extra}", changed
    if case.offload_param == "none" and case.method is not Method.qlora:
        yield (
            "zero.stage=3 offload.optimizer=cpu offload.param=cpu",
            replace(case, zero_stage=3, offload_optimizer="cpu", offload_param="cpu"),
        )
