"""Reading single keys of a `config.json`, and the keys that llama and most later families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from planner.architecture.spec import Architecture
from planner.errors import CaseError, did_you_mean

Config = Mapping[str, Any]
Reader = Callable[[Config], Architecture]

LARGEST = 1 << 24
MOST_LAYERS = 1000  # the deepest published models have a few hundred; each is played on its own


def size(config: Config, key: str, default: int | None = None, *, least: int = 1) -> int:
    """A count of elements.

    Raises:
        CaseError: when it is missing or absurd.
    """
    value = config.get(key, default)
    if value is None:
        raise CaseError(f"hf_config has no {key}, which a {config.get('model_type')} model needs")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        bound = "above 0" if least == 1 else f"from {least}"
        raise CaseError(f"hf_config.{key} is {value!r}; it must be a whole number {bound} and below 2^24")
    return value


def rate(config: Config, key: str, default: float) -> float:
    """A dropout rate."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise CaseError(f"hf_config.{key} is {value!r}; a dropout rate lies in [0, 1)")
    return float(value)


def flag(config: Config, key: str, default: bool = False) -> bool:
    """A switch; null is off."""
    value = config.get(key, default)
    if value is not None and not isinstance(value, bool):
        raise CaseError(f"hf_config.{key} is {value!r}; it must be true or false")
    return bool(value)


def word(config: Config, key: str, default: str, known: tuple[str, ...]) -> str:
    """One of a few names."""
    value = config.get(key, default)
    if value not in known:
        raise CaseError(
            f"hf_config.{key} is {value!r}, which is not supported. {did_you_mean(str(value), known)}"
        )
    return value


def window(config: Config, default: int | None = None) -> int | None:
    """Tokens a sliding window sees; null turns it off."""
    key = "sliding_window"
    return None if config.get(key, default) is None else size(config, key, default)


def layer_indices(config: Config, key: str, wanted: Any) -> tuple[int, ...] | None:
    """Blocks whose entry in a list with one item a block is `wanted`; None where there is no list."""
    given = config.get(key)
    if given is None:
        return None
    layers = size(config, "num_hidden_layers")
    items = cast("list[Any]", given) if isinstance(given, (list, tuple)) else []
    if len(items) < layers:
        raise CaseError(f"hf_config.{key} must be a list with an item for each of {layers} layers")
    return tuple(i for i, item in enumerate(items[:layers]) if item == wanted)


def windowed(config: Config, every: int) -> tuple[int, ...]:
    """Blocks with a sliding window: as listed, else all but each `every`th (0: all)."""
    listed = layer_indices(config, "layer_types", "sliding_attention")
    if listed is not None:
        return listed
    layers = size(config, "num_hidden_layers")
    return tuple(i for i in range(layers) if not every or (i + 1) % every)


def rotary_width(config: Config, head_dim: int, default: float) -> int:
    """Elements of a head that turn: `partial_rotary_factor`, in `rope_parameters` since transformers 5."""
    value: Any = config.get("partial_rotary_factor", config.get("rotary_pct"))
    nested = config.get("rope_parameters")
    if value is None and isinstance(nested, Mapping):
        value = cast("Mapping[str, Any]", nested).get("partial_rotary_factor")
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise CaseError(f"hf_config.partial_rotary_factor is {value!r}; it must lie above 0 and up to 1")
    return int(head_dim * value)


def heads_of(config: Config, hidden: int, heads: int) -> int:
    """Width of one head."""
    if config.get("head_dim") is not None:
        return size(config, "head_dim")
    if hidden % heads:
        raise CaseError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return hidden // heads


def decoder(config: Config, *, tied: bool = False, **habits: Any) -> Architecture:
    """Keys that llama and most later families share; `habits` are fields of the family's code."""
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    head_dim = heads_of(config, hidden, heads)
    kv_heads = heads if config.get("num_key_value_heads") is None else size(config, "num_key_value_heads")
    if heads % kv_heads:
        raise CaseError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    sizes: dict[str, Any] = {
        "model_type": str(config.get("model_type")),
        "layers": size(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab": size(config, "vocab_size"),
        "tied": flag(config, "tie_word_embeddings", tied),
        "max_positions": size(config, "max_position_embeddings", 2048),
        "attention_dropout": rate(config, "attention_dropout", 0.0),
    }
    if "ffn" not in habits:
        sizes["ffn"] = size(config, "intermediate_size")
    return Architecture(**(sizes | habits))
