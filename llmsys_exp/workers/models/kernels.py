"""Fused kernels in the place of a model's own code."""

from __future__ import annotations

import importlib.util
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job


def use_liger(model: Any, job: Job) -> None:
    """Replace the model's loss, norms and rotary embedding by Liger's fused kernels."""
    if job.resolved.device == "cpu":
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

    _apply_liger_kernel_to_instance(model=model)
