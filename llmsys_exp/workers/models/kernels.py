"""Fused kernels and losses in the place of a model's own code."""

from __future__ import annotations

import importlib.util
from typing import Any

from llmsys_exp.config.schema import Loss, TrainingConfig
from llmsys_exp.errors import UserError
from planner.training_case import LIGER_KERNELS


def use_kernels(model: Any, training: TrainingConfig, *, device: Any) -> None:
    """Put Liger's kernels and DeepSpeed's chunked loss in, as the settings say."""
    if training.liger:
        _use_liger(model, training.liger_kernels, device)
    if training.loss is Loss.chunked:
        _use_chunked_loss(model)


def _use_liger(model: Any, kernels: list[str], device: Any) -> None:
    if device.type == "cpu":
        raise UserError(
            "Liger kernels need a GPU", where="training.liger=true", do="Set training.liger=false"
        )
    if importlib.util.find_spec("liger_kernel") is None:
        raise UserError(
            "The package liger-kernel is not installed",
            where="training.liger=true",
            do="Run: pip install liger-kernel, or set training.liger=false",
        )
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    chosen = {name: name in kernels for name in LIGER_KERNELS} if kernels else {}
    _apply_liger_kernel_to_instance(model=model, **chosen)


def _use_chunked_loss(model: Any) -> None:
    """Cross entropy without an fp32 copy of the logits; shifts, ignores and averages as transformers does."""
    from deepspeed.runtime.chunked_cross_entropy import install_chunked_causal_lm_loss

    try:
        install_chunked_causal_lm_loss(model)
    except ValueError as error:
        raise UserError(
            f"training.loss=chunked does not suit {type(model).__name__}",
            why=str(error),
            do="Set training.loss=stock",
        ) from error
