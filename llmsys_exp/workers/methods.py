"""Choose what is trained: every weight, the last layers, or adapters."""

from __future__ import annotations

import warnings
from typing import Any

from llmsys_exp.config.schema import LoraConfig, MethodConfig, MethodKind
from llmsys_exp.errors import UserError, closest


def apply_method(model: Any, method: MethodConfig, *, checkpointing: bool) -> Any:
    """Return the model with the right weights trainable and activation checkpointing set."""
    model.config.use_cache = False
    if method.kind is MethodKind.qlora and method.quantization.prepare_for_kbit_training:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if method.kind is MethodKind.freeze:
        _freeze_all_but_last(model, method.freeze.last_layers)
    adapted = method.kind in (MethodKind.lora, MethodKind.qlora)
    if adapted:
        model = _add_adapters(model, method.lora)
    if checkpointing:
        _checkpoint_layers(model)
        if adapted:  # else no gradient would reach the first recomputed layer
            model.enable_input_require_grads()
    return model


def trainable_parameters(model: Any) -> list[Any]:
    """Return the parameters that training changes."""
    return [one for one in model.parameters() if one.requires_grad]


def parameter_counts(model: Any) -> dict[str, int]:
    """Count trainable and all elements; under ZeRO-3 as if whole."""
    sizes = [(getattr(one, "ds_numel", one.numel()), one.requires_grad) for one in model.parameters()]
    return {
        "trainable_parameters": sum(size for size, trained in sizes if trained),
        "total_parameters": sum(size for size, _ in sizes),
    }


def _freeze_all_but_last(model: Any, last_layers: int) -> None:
    layers = _decoder_layers(model)
    if not 1 <= last_layers <= len(layers):
        raise UserError(
            f"method.freeze.last_layers is {last_layers}, the model has {len(layers)} layers",
            do=f"Choose a number from 1 to {len(layers)}",
        )
    model.requires_grad_(False)
    for layer in layers[-last_layers:]:
        layer.requires_grad_(True)
    head, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not inputs.weight:
        head.requires_grad_(True)


def _decoder_layers(model: Any) -> Any:
    from torch import nn

    wanted = model.config.get_text_config().num_hidden_layers
    found = [one for one in model.modules() if isinstance(one, nn.ModuleList) and len(one) == wanted]
    if not found:
        raise UserError(
            f"No list of {wanted} layers was found in {type(model).__name__}",
            where="method.kind=freeze",
            do="Use method=lora or method=full for this model",
        )
    return found[0]


def _add_adapters(model: Any, settings: LoraConfig) -> Any:
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


def _checkpoint_layers(model: Any) -> None:
    with warnings.catch_warnings():
        # newer transformers rename the method, older ones know only this name
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
