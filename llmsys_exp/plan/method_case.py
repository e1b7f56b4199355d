"""The part of the planner's case that says what is trained: adapters, quantised base, frozen layers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Config, Dtype, FreezeConfig, LoraConfig, MethodConfig, MethodKind
from llmsys_exp.errors import UserError
from llmsys_exp.inputs.weight_files import stored_tensors

ADAPTED = (MethodKind.lora, MethodKind.qlora)
GPTQ = "gptq"
STORED_KEYS = {
    "r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "target_modules",
    "use_dora": "use_dora",
    "use_rslora": "use_rslora",
    "modules_to_save": "modules_to_save",
}
"""Key of peft's adapter_config.json -> key of the planner's case."""
ADAPTER_WEIGHT = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(?:A|embedding_A)(?:\.weight)?$")
"""A weight of peft's adapter_model.safetensors, with the module that it belongs to."""
NUMBERED = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)(?:\.|$)")


def method_case(method: MethodConfig, shape: Mapping[str, Any], *, dtype: str) -> dict[str, Any]:
    """Return `method` and its sections.

    Raises:
        UserError: when an adapter to go on with cannot be read.
    """
    case: dict[str, Any] = {"method": method.kind.value}
    if method.kind in ADAPTED:
        case["lora"] = _lora(method.lora, dtype)
    if method.kind is MethodKind.qlora:
        case["quantization"] = _quantization(method, shape)
    if method.kind is MethodKind.freeze:
        case |= _freeze(method.freeze, shape)
    return case


def check_stored_weights(config: Config, shape: Mapping[str, Any]) -> None:
    """Refuse a method that does not suit how the model folder stores its weights.

    Raises:
        UserError: for quantised weights without qlora, and for GPTQ without a GPTQ folder.
    """
    method, stored = config.method, _stored_method(shape)
    if stored and method.kind is not MethodKind.qlora:
        raise UserError(
            f"The model's weights are quantised ({stored})",
            where=f"method.kind={method.kind.value}",
            why="Packed weights take no gradient, and adapters over them are qlora",
            do="Set method=qlora method.quantization.kind=gptq, or give the model it was made from",
        )
    if method.kind is MethodKind.qlora and method.quantization.kind == GPTQ and stored != GPTQ:
        raise UserError(
            "The model is not quantised with GPTQ",
            where="method.quantization.kind=gptq",
            why=f"Its config.json says {stored}" if stored else "Its config.json has no quantization_config",
            do="Give model.path a GPTQ folder, or set method.quantization.kind=bnb",
        )


def _stored_method(shape: Mapping[str, Any]) -> str | None:
    stored = shape.get("quantization_config")
    return str(stored.get("quant_method")) if isinstance(stored, Mapping) else None


def _quantization(method: MethodConfig, shape: Mapping[str, Any]) -> dict[str, Any]:
    settings = method.quantization
    if settings.kind != GPTQ:
        return dict(vars(settings))
    stored = shape["quantization_config"]  # check_stored_weights has seen it
    return {
        "kind": GPTQ,
        "bits": stored.get("bits", 4),
        "group_size": stored.get("group_size", 128),
        "prepare_for_kbit_training": settings.prepare_for_kbit_training,
    }


def _freeze(freeze: FreezeConfig, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Named modules count as if all layers from the first that may hold one were trained: an upper end."""
    if not freeze.modules:
        return {"freeze": {"last_layers": freeze.last_layers}}
    inner = shape.get("text_config", shape)
    layers = next(int(inner[key]) for key in ("num_hidden_layers", "n_layer", "n_layers") if key in inner)
    first = layers - 1
    for name in freeze.modules:
        found = NUMBERED.search(name)
        if found:
            first = min(first, int(found[1]))
        elif "emb" in name or "wte" in name:
            return {"method": MethodKind.full.value}
        elif not name.startswith("lm_head"):
            first = 0
    return {"freeze": {"last_layers": layers - first}}


def _lora(lora: LoraConfig, dtype: str) -> dict[str, Any]:
    adapter = dtype if lora.adapter_dtype is Dtype.auto else lora.adapter_dtype.value
    kept = {"adapter_dtype": adapter, "train_base": lora.train_base}
    if lora.adapter is not None:
        return _stored_adapter(lora.adapter) | kept
    return {
        "r": lora.r,
        "alpha": lora.alpha,
        "dropout": lora.dropout,
        "target_modules": lora.targets,
        "use_dora": lora.use_dora,
        "use_rslora": lora.use_rslora,
        "modules_to_save": list(lora.modules_to_save),
        **kept,
    }


def _in_a_block(target: str) -> str:
    """Return the short name of a module that peft stored with its layer, as it does in models of few layers.

    Adapters in some of the layers only are thus counted as if they were in all: an upper end.
    """
    return target.rpartition(".")[2] if re.search(r"(^|\.)\d+\.", target) else target


def _stored_adapter(text: str) -> dict[str, Any]:
    """Rank, scale and targets of an adapter that training goes on with."""
    where = f"method.lora.adapter={text}"
    folder = Path(text).expanduser()
    do = "Give a folder that peft or llmsys wrote: adapter_config.json and adapter_model.safetensors"
    try:
        stored = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or ""
        raise UserError("adapter_config.json cannot be read", where=where, why=why, do=do) from error
    except ValueError as error:
        raise UserError("adapter_config.json is not JSON", where=where, why=str(error), do=do) from error
    kind = stored.get("peft_type") if isinstance(stored, dict) else None
    if kind != "LORA":
        raise UserError(f"The adapter is of type {kind}, not LORA", where=where, do=do)
    if not (folder / "adapter_model.safetensors").is_file():
        raise UserError("adapter_model.safetensors is missing", where=where, do=do)
    found = {ours: stored[key] for key, ours in STORED_KEYS.items() if stored.get(key) is not None}
    if isinstance(found.get("target_modules"), str):
        found["target_modules"] = _adapted_modules(folder, where)
    if isinstance(found.get("target_modules"), list):
        found["target_modules"] = sorted({_in_a_block(one) for one in found["target_modules"]})
    return found


def _adapted_modules(folder: Path, where: str) -> list[str]:
    """Name the modules that have an adapter, where the configuration has an expression for them."""
    found = [ADAPTER_WEIGHT.match(name) for name in stored_tensors(folder)]
    names = [one[1] for one in found if one]
    if not names:
        raise UserError(
            "Which modules the adapter is for cannot be told",
            where=where,
            why="Its adapter_config.json has an expression for them, and adapter_model.safetensors no lora_A",
            do="Write the names of the adapted modules as a list there",
        )
    return names
