"""Write what was trained: adapters, a whole model folder, or both."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from llmsys_exp.inputs.weight_files import fingerprint
from llmsys_exp.workers.files import whole_folder, write_json
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.shards import GB, ShardWriter, told_when_full

BASE_FILE = "base.json"
"""Beside an adapter: which weights it was trained over, see `weight_files.fingerprint`."""
SHARD_BYTES = 5 * GB
PEFT_PREFIX = "base_model.model."
NamedWeights = Iterator[tuple[str, Any]]


def save_adapter(model: Any, folder: Path, *, ranks: Ranks, base: Path | None = None) -> None:
    """Write the adapters from rank 0; every rank must call this, as shards are gathered.

    `base` is the folder of the weights below them, where it is not the one that the model was loaded from.
    """
    import deepspeed

    sharded = [one for name, one in model.named_parameters() if hasattr(one, "ds_id") and _is_adapter(name)]
    with deepspeed.zero.GatheredParameters(sharded, enabled=bool(sharded)):
        if ranks.is_first:
            with whole_folder(folder) as temporary, told_when_full(folder), warnings.catch_warnings():
                # peft asks the hub for the base model's vocabulary; a local folder has no answer there
                warnings.simplefilter("ignore", UserWarning)
                model.save_pretrained(temporary, save_embedding_layers=False)
                write_json(temporary / BASE_FILE, _base_of(model, base))


def save_whole_model(
    model: Any, tokenizer: Any, folder: Path, *, ranks: Ranks, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a 16-bit model folder from rank 0; every rank must call this, as shards are gathered.

    Rank 0 holds the weights of one file at a time, and the one weight that is being gathered.
    """
    _save(model, tokenizer, folder, named_weights(model), ranks=ranks, shard_bytes=shard_bytes)


def save_trained_base(
    model: Any, tokenizer: Any, folder: Path, *, ranks: Ranks, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write the base below adapters as a 16-bit model folder, where training changed it too.

    Every rank must call this. The adapters are not in it: `save_adapter` writes them.
    """
    plain = model.get_base_model()
    _save(plain, tokenizer, folder, base_weights(model), ranks=ranks, shard_bytes=shard_bytes)


def write_model_folder(
    model: Any, tokenizer: Any, folder: Path, *, weights: NamedWeights, shard_bytes: int = SHARD_BYTES
) -> dict[str, Any]:
    """Write weights, configuration and tokenizer into a folder that exists; return what was written.

    `weights` are taken one by one, each in main memory.
    """
    with told_when_full(folder):
        writer = ShardWriter(folder, shard_bytes, partial(_as_published, model))
        stored = None
        for name, weight in weights:
            stored = weight.dtype if stored is None and weight.is_floating_point() else stored
            writer.add(name, weight)
        files = writer.close()
        _describe(model, tokenizer, folder, stored=str(stored).removeprefix("torch."))
    return {"files": files, "weights_bytes": writer.total_bytes, "parameters": writer.parameters}


def named_weights(model: Any) -> NamedWeights:
    """Yield every weight once, in 16 bit and whole, in main memory; all ranks must take all of them."""
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    yield from _each(model, {name: name for name in model.state_dict(keep_vars=True) if name not in ignored})


def base_weights(model: Any) -> NamedWeights:
    """Yield the weights below the adapters of a peft model under their names in the plain model."""
    names = {}
    for name in model.state_dict(keep_vars=True):
        if _is_adapter(name):
            continue
        plain = name.removeprefix(PEFT_PREFIX)
        names[name] = plain.replace(".base_layer.", ".").replace(".original_module.", ".")
    yield from _each(model, names)


def in_16_bit(weight: Any) -> Any:
    """Return a host copy in 16 bit: bf16 unless it is fp16 already."""
    import torch

    held = weight.detach().to("cpu", torch.bfloat16 if weight.dtype is torch.float32 else weight.dtype)
    # a weight that lies there in 16 bit already may still change before its file is written
    return held.clone() if held.data_ptr() == weight.data_ptr() else held


def _is_adapter(name: str) -> bool:
    return ".lora_" in name or ".modules_to_save." in name


def _each(model: Any, names: dict[str, str]) -> NamedWeights:
    seen: set[int] = set()
    for name, weight in model.state_dict(keep_vars=True).items():
        if name not in names or id(weight) in seen:
            continue  # tied: the first name stands for all
        seen.add(id(weight))
        with _gathered(weight):
            held = in_16_bit(weight)
        yield names[name], held


def _gathered(weight: Any) -> Any:
    if not hasattr(weight, "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([weight])


def _save(
    model: Any, tokenizer: Any, folder: Path, weights: NamedWeights, *, ranks: Ranks, shard_bytes: int
) -> None:
    if not ranks.is_first:
        for _ in weights:  # every rank takes part in gathering
            pass
        return
    with whole_folder(folder) as temporary:
        write_model_folder(model, tokenizer, temporary, weights=weights, shard_bytes=shard_bytes)


def _as_published(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Undo what transformers does to names and shapes while loading (experts stacked, parts fused)."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, dict(weights))


def _describe(model: Any, tokenizer: Any, folder: Path, *, stored: str) -> None:
    model.config.use_cache = True
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # transformers records the type in which the model was computed with, not the one just written
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings.pop("quantization_config", None)
    write_json(folder / "config.json", settings | {"dtype": stored})


def _base_of(model: Any, folder: Path | None) -> dict[str, Any]:
    """Say what the adapter was trained over, so that merging into something else is noticed."""
    if folder is None:
        name = str(getattr(model.get_base_model(), "name_or_path", "") or "")
        folder = Path(name) if name else None
    found = fingerprint(folder) if folder is not None and folder.is_dir() else None
    return {"model": None if folder is None else str(folder), "fingerprint": found}
