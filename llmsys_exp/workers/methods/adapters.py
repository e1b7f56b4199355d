"""Low-rank adapters, through peft: new ones, or those of an earlier run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Dtype, LoraConfig
from llmsys_exp.errors import UserError, closest
from llmsys_exp.workers import events

WHERE = "method.lora.adapter"
NEW = "Give the folder of an adapter of this model, or leave method.lora.adapter out to start a new one"


def add_adapters(model: Any, settings: LoraConfig) -> Any:
    """Return the model with adapters, in the type that the settings say.

    peft gives adapters the type of the weight under them, or fp32. DeepSpeed then casts every weight to the
    compute type, unless the base was built under zero.Init (stage 3), whose adapters stay as they are.
    """
    in_fp32 = settings.adapter_dtype is Dtype.fp32
    model = (
        _new_adapters(model, settings, in_fp32=in_fp32)
        if settings.adapter is None
        else _earlier_adapters(model, Path(settings.adapter).expanduser(), in_fp32=in_fp32)
    )
    _cast_adapters(model, settings.adapter_dtype)
    if settings.train_base:
        model.requires_grad_(True)
    return model


def _cast_adapters(model: Any, wanted: Dtype) -> None:
    """Over int8 weights peft has no type to go by and leaves fp32."""
    import torch

    types = {Dtype.fp32: torch.float32, Dtype.fp16: torch.float16, Dtype.bf16: torch.bfloat16}
    if wanted is Dtype.auto:
        return
    for name, weight in model.named_parameters():
        if ".lora_" in name and weight.dtype is not types[wanted]:
            weight.data = weight.data.to(types[wanted])


def _new_adapters(model: Any, settings: LoraConfig, *, in_fp32: bool) -> Any:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    targets = settings.targets
    if targets == "all-linear":
        targets = _packed_linears(model) or targets
    else:
        _check_names(model, [targets] if isinstance(targets, str) else targets, "method.lora.targets")
    _check_names(model, settings.modules_to_save, "method.lora.modules_to_save")
    adapter = PeftConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        use_dora=settings.use_dora,
        use_rslora=settings.use_rslora,
        modules_to_save=list(settings.modules_to_save) or None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapter, autocast_adapter_dtype=in_fp32)


def _packed_linears(model: Any) -> list[str]:
    """Name the matrices of a GPTQ base: they are no `nn.Linear`, which is all that peft looks for."""
    found = {name.rpartition(".")[2] for name, one in model.named_modules() if hasattr(one, "qweight")}
    return sorted(found)


def _check_names(model: Any, wanted: Iterable[str], where: str) -> None:
    present = {name.rpartition(".")[2] for name, _ in model.named_modules() if name}
    for name in wanted:
        if name.rpartition(".")[2] not in present:
            near = closest(name, present)
            raise UserError(
                f"The model has no module called {name!r}",
                where=where,
                do=f"Did you mean {near}?" if near else "Use all-linear",
            )


def _earlier_adapters(model: Any, folder: Path, *, in_fp32: bool) -> Any:
    """Go on with saved adapters; those of another model are refused, not half loaded."""
    from peft import PeftModel

    stored = _stored_shapes(folder)
    _note_base(model, folder)
    try:
        adapted = PeftModel.from_pretrained(
            model, str(folder), is_trainable=True, autocast_adapter_dtype=in_fp32
        )
    except (RuntimeError, ValueError) as error:  # shapes, and modules that are not there
        raise _other_model(folder, _reason(error)) from error
    wanted = _adapter_shapes(adapted)
    lost, absent = sorted(set(stored) - set(wanted)), sorted(set(wanted) - set(stored))
    if lost or absent:
        name = (lost or absent)[0]
        reason = f"{len(lost)} of its weights have no place in this model" if lost else ""
        reason = reason or f"{len(absent)} adapters of this model are not in it"
        raise _other_model(folder, f"{reason}, {name} for one")
    return adapted


def _stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from peft.utils import SAFETENSORS_WEIGHTS_NAME
    from safetensors import SafetensorError, safe_open

    file = folder / SAFETENSORS_WEIGHTS_NAME
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"The adapter cannot be read: {_reason(error)}", where=f"{WHERE}={folder}", do=NEW
        ) from error


def _adapter_shapes(adapted: Any) -> dict[str, tuple[int, ...]]:
    from peft import get_peft_model_state_dict

    held = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    return {name: tuple(one.shape) for name, one in held.items()}


def _note_base(model: Any, folder: Path) -> None:
    from peft import PeftConfig

    made_for = PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    base = model.config.name_or_path
    if made_for and base and Path(made_for).name != Path(base).name:
        events.note(f"The adapter in {folder} was trained on {made_for}; this run's base is {base}.")


def _other_model(folder: Path, reason: str) -> UserError:
    return UserError("The adapter is of another model", where=f"{WHERE}={folder}", why=reason, do=NEW)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line for line in lines if "size mismatch" in line), lines[0] if lines else type(error).__name__
    )
