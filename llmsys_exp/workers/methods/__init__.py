"""Choose what is trained: every weight, some layers, or adapters."""

from __future__ import annotations

from typing import Any

from llmsys_exp.config.schema import Config, MethodConfig, MethodKind
from llmsys_exp.workers.job import settled
from llmsys_exp.workers.methods.adapters import add_adapters
from llmsys_exp.workers.methods.checkpointing import checkpoint_layers
from llmsys_exp.workers.methods.freeze import freeze_all_but

ADAPTED = (MethodKind.lora, MethodKind.qlora)


def apply_method(model: Any, config: Config) -> Any:
    """Return the model with the right weights trainable and activation checkpointing set."""
    method, training = config.method, config.training
    model.config.use_cache = False
    if method.kind is MethodKind.qlora and method.quantization.prepare_for_kbit_training:
        from peft import prepare_model_for_kbit_training

        # its own checkpointing would be set without asking how
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if method.kind is MethodKind.freeze:
        freeze_all_but(model, method.freeze)
    if method.kind in ADAPTED:
        model = add_adapters(model, method.lora)
    if settled(training.gradient_checkpointing, "training.gradient_checkpointing"):
        checkpoint_layers(model, training, adapted=method.kind in ADAPTED)
    return model


def saves_adapters(method: MethodConfig) -> bool:
    """Return whether the adapters alone are the result; else it is the whole model."""
    return method.kind in ADAPTED and not method.lora.train_base
