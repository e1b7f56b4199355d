"""Write what was trained: adapters, or a whole model folder."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from llmsys_exp.workers.files import whole_folder, write_json
from llmsys_exp.workers.methods.parameters import trainable_parameters
from llmsys_exp.workers.ranks import Ranks


def save_adapter(model: Any, folder: Path, *, ranks: Ranks) -> None:
    """Write the adapters from rank 0; every rank must call this, as shards are gathered."""
    import deepspeed

    sharded = [one for one in trainable_parameters(model) if hasattr(one, "ds_id")]
    with deepspeed.zero.GatheredParameters(sharded, enabled=bool(sharded)):
        if ranks.is_first:
            with whole_folder(folder) as temporary, warnings.catch_warnings():
                # peft asks the hub for the base model's vocabulary; a local folder has no answer there
                warnings.simplefilter("ignore", UserWarning)
                model.save_pretrained(temporary, save_embedding_layers=False)


def save_whole_model(model: Any, tokenizer: Any, folder: Path, *, ranks: Ranks) -> None:
    """Write a 16-bit model folder from rank 0; every rank must call this, as shards are gathered."""
    weights = _whole_weights(model, ranks)
    if ranks.is_first:
        write_model_folder(model, tokenizer, folder, weights=weights)


def write_model_folder(model: Any, tokenizer: Any, folder: Path, *, weights: dict[str, Any]) -> None:
    """Write weights, configuration and tokenizer as one folder that is whole or absent."""
    model.config.use_cache = True
    stored = next(one.dtype for one in weights.values() if one.is_floating_point())
    with whole_folder(folder) as temporary:
        model.save_pretrained(temporary, state_dict=weights)
        tokenizer.save_pretrained(temporary)
        # transformers records the type in which the model was computed with, not the one just written
        settings = json.loads((temporary / "config.json").read_text(encoding="utf-8"))
        write_json(temporary / "config.json", settings | {"dtype": str(stored).removeprefix("torch.")})


def in_16_bit(weight: Any) -> Any:
    """Return a host copy in 16 bit: bf16 unless it is fp16 already."""
    import torch

    held = weight.detach().to("cpu", copy=True)
    return held.to(torch.bfloat16) if held.dtype is torch.float32 else held


def _whole_weights(model: Any, ranks: Ranks) -> dict[str, Any]:
    import deepspeed

    weights: dict[str, Any] = {}
    for name, weight in model.named_parameters():
        sharded = hasattr(weight, "ds_id")
        with deepspeed.zero.GatheredParameters([weight] if sharded else [], enabled=sharded):
            if ranks.is_first:
                weights[name] = in_16_bit(weight)
    if ranks.is_first:
        names = {name for name, _ in model.named_parameters()}
        held = model.state_dict(keep_vars=True)
        aliases = {id(one) for one in model.parameters()}
        weights |= {
            name: in_16_bit(one) for name, one in held.items() if name not in names and id(one) not in aliases
        }
    return weights
