"""Partial fine-tuning: the last layers alone."""

from __future__ import annotations

from typing import Any

from llmsys_exp.errors import UserError


def freeze_all_but_last(model: Any, last_layers: int) -> None:
    """Train the last layers, and the output layer when it is not tied."""
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
