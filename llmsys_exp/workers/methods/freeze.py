"""Partial fine-tuning: the last layers alone, or modules by name."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from llmsys_exp.config.schema import FreezeConfig
from llmsys_exp.errors import UserError, closest
from llmsys_exp.workers.methods.layers import decoder_layers


def freeze_all_but(model: Any, settings: FreezeConfig) -> None:
    """Train the named modules where there are any, else the last layers with an output layer of their own."""
    if settings.modules:
        _freeze_all_but_modules(model, settings.modules)
    else:
        _freeze_all_but_last(model, settings.last_layers)


def _freeze_all_but_last(model: Any, last_layers: int) -> None:
    layers = decoder_layers(model)
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


def _freeze_all_but_modules(model: Any, wanted: list[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for module in wanted:
        if not any(_holds(name, module) for name in names):
            near = closest(module, _module_names(names))
            raise UserError(
                f"The model has no module called {module!r}",
                where="method.freeze.modules",
                do=f"Did you mean {near}?" if near else "Names stand in model.safetensors.index.json",
            )
    for name, weight in model.named_parameters():
        weight.requires_grad_(any(_holds(name, module) for module in wanted))


def _holds(parameter: str, module: str) -> bool:
    """Return whether whole parts of a parameter's dotted name spell the module's name.

    >>> _holds("model.layers.10.mlp.up_proj.weight", "layers.1")
    False
    >>> _holds("model.layers.1.mlp.up_proj.weight", "layers.1")
    True
    """
    return f".{module.strip('.')}." in f".{parameter}."


def _module_names(parameters: list[str]) -> set[str]:
    """Return the names a user may mean: each single part, and `layers.n`."""
    parts = {part for name in parameters for part in name.split(".") if not part.isdigit()}
    pairs = {".".join(pair) for name in parameters for pair in pairwise(name.split("."))}
    return parts | pairs
