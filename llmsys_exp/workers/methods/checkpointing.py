"""Activation checkpointing: keep each layer's input, compute the rest again in backward."""

from __future__ import annotations

import warnings
from typing import Any

from llmsys_exp.config.schema import Checkpointing, TrainingConfig
from llmsys_exp.workers.methods.layers import decoder_layers

FUNCTION = "_gradient_checkpointing_func"
"""Where transformers' layers keep the function that runs them."""


def checkpoint_layers(model: Any, training: TrainingConfig, *, adapted: bool) -> None:
    """Make every layer of the model run under the checkpointing function that the settings name."""
    kind = training.checkpointing
    with warnings.catch_warnings():
        # newer transformers rename the method, older ones know only this name
        warnings.simplefilter("ignore", FutureWarning)
        reentrant = kind is not Checkpointing.non_reentrant
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    if kind is Checkpointing.deepspeed:
        _use_deepspeeds(model, on_cpu=training.checkpointing_cpu)
    if adapted:  # else no gradient would reach the first recomputed layer
        model.enable_input_require_grads()
    elif kind is not Checkpointing.non_reentrant:
        _let_gradients_in(model)


def _use_deepspeeds(model: Any, *, on_cpu: bool) -> None:
    from deepspeed.runtime.activation_checkpointing import checkpointing

    checkpointing.configure(None, partition_activations=False, checkpoint_in_cpu=on_cpu)
    for module in model.modules():
        if hasattr(module, FUNCTION):
            setattr(module, FUNCTION, checkpointing.checkpoint)


def _let_gradients_in(model: Any) -> None:
    """Re-entrant checkpointing sees only inputs: without one that wants a gradient it records nothing.

    Frozen layers below the first trained one need no checkpointing, as nothing of them is kept; the last
    output of theirs is then made to want a gradient.
    """
    layers = list(decoder_layers(model))
    first = next((at for at, one in enumerate(layers) if _is_trained(one)), len(layers))
    if first == 0 and _is_trained(model.get_input_embeddings()):
        return
    for layer in layers[:first]:
        layer.gradient_checkpointing = False
    below = layers[first - 1] if first else model.get_input_embeddings()
    below.register_forward_hook(_want_gradient)


def _is_trained(module: Any) -> bool:
    return any(weight.requires_grad for weight in module.parameters())


def _want_gradient(_module: Any, _inputs: Any, output: Any) -> None:
    first = output[0] if isinstance(output, tuple) else output
    first.requires_grad_(True)
