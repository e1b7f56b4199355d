"""Sizes of a model, from transformers on the meta device: what the rivals' own code would read off a live model."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=4)
def _meta_model(config: str, head: bool) -> Any:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    keys = json.loads(config)
    kind = AutoModelForCausalLM if head else AutoModel
    with torch.device("meta"):
        return kind.from_config(AutoConfig.for_model(**keys), dtype=torch.float32)


def meta_model(config: dict[str, Any], *, head: bool = True) -> Any:
    """The model without weights; `head=False` gives what `AutoModel` builds."""
    return _meta_model(json.dumps(config, sort_keys=True), head)


def parameters(config: dict[str, Any]) -> int:
    """All parameters, tied ones once."""
    return sum(p.numel() for p in meta_model(config).parameters())


def largest_layer(config: dict[str, Any]) -> int:
    """Parameters of the module that holds most of its own, as DeepSpeed's `model_to_params` counts them."""
    own = (sum(p.numel() for p in m.parameters(recurse=False)) for m in meta_model(config).modules())
    return max(own)


def explicit(config: dict[str, Any]) -> dict[str, Any]:
    """The config with `tie_word_embeddings` written out, as the hub's files have it; rows leave defaults away."""
    return config | {"tie_word_embeddings": bool(meta_model(config).config.tie_word_embeddings)}
