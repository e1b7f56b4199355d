"""Forecast of alignment jobs: DPO and GRPO as trl runs them, PPO as DeepSpeed-Chat does.

All models of a job live in one allocator: those that are trained are played as training jobs, the others are
loaded and score under `no_grad`. Sources: trl at commit f2cd577 (July 2026), `trainer/dpo_trainer.py`,
`trainer/grpo_trainer.py`; DeepSpeed-Chat (DeepSpeedExamples at commit 5ff0211), `rlhf/rlhf_engine.py`,
`rlhf/ppo_trainer.py`; generation: `planner/serving/phases.py`. Derived from them, not measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from planner.alignment_case import AlignmentCase, parse_alignment_case
from planner.alignment_play import AlignmentRun
from planner.disk import disk_bytes
from planner.forecast import Forecast
from planner.forecasting import forecast_of, without_collecting
from planner.host import host_bytes
from planner.tables import CPU
from planner.uncertainty import DERIVED, residuals_of

ONCE = "processes"  # the models of a job share their processes


def forecast_alignment(kind: str, case: Mapping[str, Any]) -> Forecast:
    """Play an alignment job through and sum it up.

    Args:
        kind: dpo, grpo or ppo.
        case: the job; keys: docs/case-format.md.

    Raises:
        CaseError: when the job cannot be planned, with the reasons.
    """
    began = time.perf_counter()
    parsed = parse_alignment_case(kind, case)
    with without_collecting():
        run = AlignmentRun(parsed)
        run.play()
    return forecast_of(
        parsed.first,
        run.arena,
        start_peak_bytes=run.start_peak_bytes,
        host=_host(parsed, run),
        disk=_disk(parsed, run),
        seconds=time.perf_counter() - began,
        residuals=residuals_of(DERIVED),
        notes=_notes(parsed),
    )


def _host(parsed: AlignmentCase, run: AlignmentRun) -> dict[str, int]:
    total: dict[str, int] = {}
    ranks = parsed.first.world_size
    for name, case in {**parsed.trained, **parsed.frozen}.items():
        for use, nbytes in host_bytes(case, run.networks[name], ranks_per_node=ranks).items():
            total[use] = max(total.get(use, 0), nbytes) if use == ONCE else total.get(use, 0) + nbytes
    if parsed.first.device == CPU:
        total["tensors of all ranks"] = run.arena.peak_bytes * ranks
    return total


def _disk(parsed: AlignmentCase, run: AlignmentRun) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, case in parsed.trained.items():
        for use, nbytes in disk_bytes(case, run.networks[name]).items():
            total[use] = total.get(use, 0) + nbytes
    return total


def _notes(parsed: AlignmentCase) -> tuple[str, ...]:
    notes = [f"kind {parsed.kind}: derived from the sources of trl and DeepSpeed-Chat, not measured"]
    if parsed.base_scores:
        notes.append("the reference is the policy with its adapters switched off: no second model")
    if parsed.generation is not None:
        notes.append("generation by transformers; fragments that the growing cache leaves are not counted")
    if parsed.kind == "ppo":
        notes.append("without hybrid engine, EMA model and mixed-precision LoRA of DeepSpeed-Chat")
    return tuple(notes)
