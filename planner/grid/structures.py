"""Which combinations of settings are worth considering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from planner.training_case import TrainingCase

BITSANDBYTES = "bnb"
SIZES = ("micro_batch", "seq_len", "grad_accum")


def structures(case: TrainingCase, axes: Mapping[str, Sequence[Any]]) -> Iterator[TrainingCase]:
    """Every consistent combination of the axes that are not sizes."""
    names = [name for name in axes if name not in SIZES]
    for values in product(*(axes[name] for name in names)):
        candidate = replace(case, **dict(zip(names, values, strict=True)))
        if consistent(candidate):
            yield candidate


def consistent(case: TrainingCase) -> bool:
    """Whether DeepSpeed does what these settings say, and nothing is set twice."""
    if case.offload_optimizer != "none" and case.zero_stage == 0:
        return False
    if case.offload_param != "none" and (case.zero_stage != 3 or case.offload_optimizer == "none"):
        return False
    if case.liger and case.loss == "chunked":
        return False
    base = case.quantization
    if base is None or case.zero_stage != 3:
        return True
    return base.kind == BITSANDBYTES and case.offload_param == "none"
