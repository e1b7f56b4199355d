"""Choose what is trained: every weight, the last layers, or adapters."""

from __future__ import annotations

import warnings
from typing import Any

from llmsys_exp.config.schema import MethodConfig, MethodKind
from llmsys_exp.workers.methods.adapters import add_adapters
from llmsys_exp.workers.methods.freeze import freeze_all_but_last


def apply_method(model: Any, method: MethodConfig, *, checkpointing: bool) -> Any:
    """Return the model with the right weights trainable and activation checkpointing set."""
    model.config.use_cache = False
    if method.kind is MethodKind.qlora and method.quantization.prepare_for_kbit_training:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if method.kind is MethodKind.freeze:
        freeze_all_but_last(model, method.freeze.last_layers)
    adapted = method.kind in (MethodKind.lora, MethodKind.qlora)
    if adapted:
        model = add_adapters(model, method.lora)
    if checkpointing:
        _checkpoint_layers(model)
        if adapted:  # else no gradient would reach the first recomputed layer
            model.enable_input_require_grads()
    return model


def _checkpoint_layers(model: Any) -> None:
    with warnings.catch_warnings():
        # newer transformers rename the method, older ones know only this name
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
