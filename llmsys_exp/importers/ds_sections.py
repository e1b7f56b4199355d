"""Sections of a DeepSpeed configuration beside ZeRO: precision, optimizer, scheduler, checkpointing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers.sheet import Sheet

AUTO = "auto"
OPTIMIZERS = {"adam": "deepspeed_adamw", "adamw": "deepspeed_adamw", "lion": "lion", "sgd": "sgd"}
SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
PARAMS = {"lr": "learning_rate", "weight_decay": "weight_decay", "eps": "adam_eps", "momentum": "momentum"}
_DEFAULT_FP16 = {"loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1, "auto_cast": False,
                 "consecutive_hysteresis": False, "fp16_master_weights_and_grads": False}  # fmt: skip
_DEFAULT_BF16 = {"immediate_grad_update": False, "check_grad_overflow": False}


def section(sheet: Sheet, key: str) -> Mapping[str, Any]:
    """Return a section; an empty one where there is none.

    Raises:
        UserError: when it is no mapping.
    """
    found = sheet.take(key, {})
    if isinstance(found, Mapping):
        return found
    raise UserError(f"{key} is {found!r}", where=str(sheet.source), do="It must be a mapping")


def number(sheet: Sheet, where: str, value: Any) -> float:
    """Return a number.

    Raises:
        UserError: for anything else.
    """
    try:
        found = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isfinite(found):
        return found
    raise UserError(f"{where} is {value!r}", where=str(sheet.source), do="It must be a number or auto")


def params_of(sheet: Sheet, given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the `params` of a section."""
    found = given.get("params") or {}
    if isinstance(found, Mapping):
        return found
    raise UserError(f"{where}.params is {found!r}", where=str(sheet.source), do="It must be a mapping")


def put_precision(sheet: Sheet) -> None:
    """Map bf16 (or its old name bfloat16), fp16 and the type of accumulated gradients."""
    bf16 = {**section(sheet, "bfloat16"), **section(sheet, "bf16")}
    fp16 = section(sheet, "fp16")
    held = sheet.settings.get("training.dtype", AUTO)
    for name, one in (("bf16", bf16), ("fp16", fp16)):
        if one.get("enabled") == AUTO:
            which = held if held != AUTO else "which this file does not hold; training.dtype stays auto"
            sheet.note(f"{name}.enabled=auto: from the trainer's bf16 and fp16, {which}")
    on = [name for name, one in (("bf16", bf16), ("fp16", fp16)) if one.get("enabled") is True]
    if len(on) == 2:
        raise UserError("bf16 and fp16 are both enabled", where=str(sheet.source), do="Keep one")
    any_auto = AUTO in (bf16.get("enabled"), fp16.get("enabled"))
    if on or not any_auto:
        sheet.put("training.dtype", on[0] if on else "fp32")
    if sheet.settings.get("training.dtype") == "fp16":
        _put_scaling(sheet, fp16)
    if on == ["bf16"] or held == "bf16":
        _tell_odd(sheet, "bf16", bf16, _DEFAULT_BF16)
    kept = section(sheet, "data_types").get("grad_accum_dtype")
    if kept is not None:
        sheet.put("training.grad_accum_dtype", str(kept))


def _put_scaling(sheet: Sheet, fp16: Mapping[str, Any]) -> None:
    scale, power = fp16.get("loss_scale", 0), fp16.get("initial_scale_power", 16)
    if scale != AUTO:
        sheet.put("training.loss_scale", number(sheet, "fp16.loss_scale", scale))
    if power != AUTO:
        sheet.put("training.initial_scale_power", int(number(sheet, "fp16.initial_scale_power", power)))
    _tell_odd(sheet, "fp16", fp16, _DEFAULT_FP16)


def _tell_odd(sheet: Sheet, name: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key in ("enabled", "loss_scale", "initial_scale_power") or value == defaults.get(key, value):
            continue
        sheet.tell(f"{name}.{key}", f"llmsys takes {defaults[key]}", value=value)
    for key in set(given) - {"enabled", "loss_scale", "initial_scale_power", *defaults}:
        sheet.tell(f"{name}.{key}", "not a key that is known here", value=given[key])


def put_optimizer(sheet: Sheet) -> None:
    """Map the optimizer; without a section DeepSpeed takes the one of the script."""
    given = section(sheet, "optimizer")
    if not given:
        return
    name, params = str(given.get("type", "")), params_of(sheet, given, "optimizer")
    ours = OPTIMIZERS.get(name.lower())
    if ours is None:
        sheet.tell(
            "optimizer.type",
            "llmsys has no such optimizer; AdamW stands in",
            "Set training.optimizer",
            value=name,
        )
    adam_l2 = name.lower() == "adam" and params.get("adam_w_mode") is False
    if adam_l2:
        sheet.tell(
            "optimizer.params.adam_w_mode", "decay is decoupled from the gradient (AdamW)", value=False
        )
    if params.get("torch_adam"):
        ours = "torch_adamw_fused" if params.get("fused") else "torch_adamw"
    if ours == "sgd" and params.get("momentum"):
        ours = "sgd_momentum"
    sheet.put("training.optimizer", ours or "auto")
    for key, value in params.items():
        _put_param(sheet, key, value)


def _put_param(sheet: Sheet, key: str, value: Any) -> None:
    where = f"optimizer.params.{key}"
    if value == AUTO:
        sheet.note(f"{where}=auto: from the trainer's arguments")
    elif key == "betas" and isinstance(value, (list, tuple)) and len(value) == 2:
        if AUTO not in value:
            sheet.put("training.adam_beta1", number(sheet, where, value[0]))
            sheet.put("training.adam_beta2", number(sheet, where, value[1]))
    elif key in PARAMS:
        agree(sheet, where, f"training.{PARAMS[key]}", number(sheet, where, value))
        sheet.put(f"training.{PARAMS[key]}", number(sheet, where, value))
    elif key not in ("torch_adam", "adam_w_mode", "fused"):
        sheet.tell(where, "no setting stands for it", value=value)


def agree(sheet: Sheet, key: str, setting: str, value: float | None) -> None:
    """Refuse a number that is not that of the trainer's arguments, as transformers does.

    Raises:
        UserError: when both are given and differ.
    """
    held = sheet.settings.get(setting)
    if isinstance(held, (int, float)) and not isinstance(held, bool) and held != value:
        raise UserError(
            f"{key} is {value}, and the trainer's arguments say {held}",
            where=str(sheet.source),
            do="Mend one, or use auto",
        )


def put_scheduler(sheet: Sheet) -> None:
    """Map the schedule: rise, then constant, linear or cosine."""
    given = section(sheet, "scheduler")
    if not given:
        return
    name, params = str(given.get("type", "")), params_of(sheet, given, "scheduler")
    if name not in SCHEDULERS:
        sheet.tell(
            "scheduler.type",
            "there is no such schedule; cosine stands in",
            "Set training.scheduler",
            value=name,
        )
        return
    sheet.put("training.scheduler", SCHEDULERS[name])
    for key, value in params.items():
        _put_schedule_param(sheet, key, value)
    if params.get("warmup_type", "log") == "log" and params.get("warmup_num_steps") not in (None, 0, AUTO):
        sheet.tell(
            "scheduler.params.warmup_type", "the rate rises in a line, not with the logarithm", value="log"
        )


def _put_schedule_param(sheet: Sheet, key: str, value: Any) -> None:
    where = f"scheduler.params.{key}"
    if value == AUTO:
        sheet.note(f"{where}=auto: from the trainer's arguments")
    elif key == "warmup_num_steps":
        sheet.put("training.warmup_steps", int(number(sheet, where, value)))
    elif key == "warmup_max_lr":
        sheet.put("training.learning_rate", number(sheet, where, value))
    elif key == "total_num_steps":
        sheet.put("training.max_steps", int(number(sheet, where, value)))
    elif key != "warmup_type" and value not in (0, -1):
        sheet.tell(where, "the rate starts at 0 and ends at 0", value=value)


def put_activation_checkpointing(sheet: Sheet) -> None:
    """DeepSpeed's own checkpointing is configured here, and used only where a script calls it."""
    given = section(sheet, "activation_checkpointing")
    asked = [key for key, value in given.items() if value not in (False, None, 0)]
    if asked:
        sheet.tell(
            "activation_checkpointing",
            "models of transformers do not call it, so the section alone does nothing",
            "To use it: training.gradient_checkpointing=true training.checkpointing=deepspeed",
            value=dict(given),
            matters=False,
        )
