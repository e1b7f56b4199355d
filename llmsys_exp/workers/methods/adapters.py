"""Low-rank adapters, through peft."""

from __future__ import annotations

from typing import Any

from llmsys_exp.config.schema import LoraConfig
from llmsys_exp.errors import UserError, closest


def add_adapters(model: Any, settings: LoraConfig) -> Any:
    """Return the model with adapters at the modules that the settings name."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    targets = settings.targets
    _check_targets(model, targets)
    adapter = PeftConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapter)


def _check_targets(model: Any, targets: Any) -> None:
    if targets == "all-linear":
        return
    present = {name.rpartition(".")[2] for name, _ in model.named_modules() if name}
    for target in [targets] if isinstance(targets, str) else targets:
        if target.rpartition(".")[2] not in present:
            near = closest(target, present)
            raise UserError(
                f"The model has no module called {target!r}",
                where="method.lora.targets",
                do=f"Did you mean {near}?" if near else "Use all-linear",
            )
