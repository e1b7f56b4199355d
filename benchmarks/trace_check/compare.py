"""Modes of training, and the comparison of one family under one of them."""

from __future__ import annotations

from typing import Any

import planner
from planner.training_case import TrainingCase

from .configs import TARGETS, config_of
from .figures import Figures
from .planned import planned_figures
from .traced import supports, traced_figures

LORA = {"method": "lora", "lora": {"r": 8, "dropout": 0.0}}
FULL = {"method": "full"}
FREEZE = {"method": "freeze", "freeze": {"last_layers": 1}}
CHECKPOINT = {"gradient_checkpointing": True}

MODES: dict[str, dict[str, Any]] = {
    "full": FULL,
    "full ckpt": {**FULL, **CHECKPOINT},
    "lora": LORA,
    "lora ckpt": {**LORA, **CHECKPOINT},
    "full eager": {**FULL, "attention": "eager"},
    "lora eager": {**LORA, "attention": "eager"},
    "full padded": {**FULL, "padded": True},
    "freeze": FREEZE,
    "freeze ckpt": {**FREEZE, **CHECKPOINT},
    "lora dropout": {**LORA, "lora": {**LORA["lora"], "dropout": 0.1}},
    "full fp32": {**FULL, "dtype": "fp32"},
    "lora padded ckpt": {**LORA, **CHECKPOINT, "padded": True},
}
TOLERANCE = 0.01


def case_of(family: str, mode: str) -> TrainingCase:
    """The planner's case: one rank, stage 0, two sequences of 384 tokens."""
    # Not a Hopper card: there cuDNN's attention would run for DeepSeek, which torch does not trace without it.
    shape = {"micro_batch": 2, "seq_len": 384, "dtype": "bf16", "gpu": "a100-80gb"}
    settings = {**shape, **MODES[mode]}
    if "lora" in settings:
        settings["lora"] = {**settings["lora"], "target_modules": TARGETS.get(family, "all-linear")}
    return planner.parse_training_case({"hf_config": config_of(family), **settings})


def compare(family: str, mode: str) -> tuple[Figures, Figures] | None:
    """(planned, traced) of one family under one mode; None where transformers offers no such run."""
    case = case_of(family, mode)
    if not supports(config_of(family), case.attention):
        return None
    if case.dtype == "fp32" and case.architecture.experts is not None:  # grouped products are for bf16 alone
        return None
    return planned_figures(case), traced_figures(config_of(family), case)
