"""Optimizers that DeepSpeed does not make itself, and the state that its wrappers start them with."""

from __future__ import annotations

import importlib.util
from typing import Any

from llmsys_exp.config.schema import Optimizer, TrainingConfig
from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import settled

BITSANDBYTES = {
    Optimizer.adamw_8bit: "AdamW8bit",
    Optimizer.paged_adamw_8bit: "PagedAdamW8bit",
    Optimizer.paged_adamw: "PagedAdamW",
}
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def client_optimizer(weights: list[Any], training: TrainingConfig) -> Any:
    """Return the optimizer of a job whose ds_config.json names none."""
    kind = settled(training.optimizer, "training.optimizer")
    common = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if kind is Optimizer.adafactor:
        from transformers.optimization import Adafactor

        # its own schedule and scaling would take the place of training.learning_rate
        return Adafactor(weights, scale_parameter=False, relative_step=False, **common)
    if kind not in BITSANDBYTES:
        raise UserError(
            f"ds_config.json names no optimizer, but {kind.value} is DeepSpeed's to make",
            where="ds_config.json",
            do="Start the run through llmsys, which writes both files",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            "The package bitsandbytes is not installed",
            where=f"training.optimizer={kind.value}",
            do="Run: pip install 'llmsys-exp[quant]', or set training.optimizer=deepspeed_adamw",
        )
    import bitsandbytes

    maker = getattr(bitsandbytes.optim, BITSANDBYTES[kind])
    betas = (training.adam_beta1, training.adam_beta2)
    return maker(weights, betas=betas, eps=training.adam_eps, **common)


def undo_dummy_step(wrapper: Any) -> None:
    """Take back the optimizer step on zero gradients that DeepSpeed's stage 0 makes at its start.

    `runtime/fp16/fused_optimizer.py` and `unfused_optimizer.py: initialize_optimizer_states` (0.19.8) make
    optimizer state that way, in 16 bit alone, and leave it behind: Adam would count its first step as the
    second (first updates of 0.74 times their size), and decay would have shrunk the weights. What the step
    allocated stays, so that memory is as it was.
    """
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    if isinstance(wrapper, FP16_Optimizer):
        pairs = list(zip(wrapper.fp32_groups_flat, wrapper.fp16_groups_flat, strict=True))
    elif isinstance(wrapper, FP16_UnfusedOptimizer):
        groups = zip(wrapper.fp32_groups, wrapper.fp16_groups, strict=True)
        pairs = [pair for wide, narrow in groups for pair in zip(wide, narrow, strict=True)]
    else:
        return
    for wide, narrow in pairs:
        wide.data.copy_(narrow.data)
    for state in wrapper.optimizer.state.values():
        for name, value in state.items():
            if name == "step" and isinstance(value, int):
                state[name] = 0
            elif name in ("step", *MOMENTS):
                value.zero_()
