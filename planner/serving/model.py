"""The shape of a served model, as inference engines read it from `config.json`.

Families of `planner.architecture` are read there; gpt-oss is read here, because serving needs no more of it
than its sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from planner.architecture.families import FAMILIES, architecture_of
from planner.architecture.spec import Architecture, Mlp, Rotary
from planner.errors import CaseError
from planner.network.modules import has_norm_bias, inner_norms, norm_names, norm_width

Config = Mapping[str, Any]
GPT_OSS = "gpt_oss"
_LARGEST = 1 << 24
_FEED_COPIES = {Mlp.fused_gated: 4, Mlp.gelu_new: 4, Mlp.gated: 3, Mlp.moe: 3}
"""A fused gate stays one tensor beside activation and product; gpt2 spells its activation out. Others: 2."""


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: widths of DeepSeek's projections. `q_lora` 0: one query projection."""

    q_lora: int
    kv_lora: int
    rope: int
    nope: int
    v: int


@dataclass(frozen=True)
class Moe:
    """A mixture of experts. `shared_ffn`: width of the shared experts together; `dense_layers` have none."""

    experts: int
    per_token: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0


@dataclass(frozen=True)
class ServedModel:
    """Sizes in elements.

    Attributes:
        norm_elements: norms of one layer.
        outer_elements: small weights outside the layers, as the last norm.
        window_layers: how many layers see a window only.
        feed_copies: widths of the feed-forward part that transformers holds at its widest moment.
        rotary_width: elements of a head that turn.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    max_positions: int
    norm_elements: int
    outer_elements: int
    mla: Mla | None = None
    moe: Moe | None = None
    gated: bool = True
    feed_copies: int = 3
    rotary_width: int = 0
    learned_positions: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    router_bias: bool = False
    window: int | None = None
    window_layers: int = 0
    quantization: Mapping[str, Any] = field(default_factory=lambda: {}, hash=False)


def is_served(config: Config) -> bool:
    """Whether `served_model` knows the family of a configuration."""
    family = str(config.get("model_type"))
    return family == GPT_OSS or family in FAMILIES or config.get("kv_lora_rank") is not None


def served_model(config: Config) -> ServedModel:
    """Read a Hugging Face configuration.

    Raises:
        CaseError: for a family that is not known, or a key that is missing or absurd.
    """
    if config.get("index_head_dim") is not None:
        raise CaseError(
            f"hf_config.index_head_dim: sparse attention with an indexer ({config.get('model_type')}) is not "
            "supported: its indexer keeps a cache of its own"
        )
    family = str(config.get("model_type"))
    if family == GPT_OSS:
        model = _gpt_oss(config)
    elif family not in FAMILIES and config.get("kv_lora_rank") is not None:
        like_deepseek = architecture_of({**config, "model_type": "deepseek_v3"})  # Kimi K2 and others
        model = replace(model_of(like_deepseek), model_type=family)
    else:
        model = model_of(architecture_of(config))
    return replace(model, quantization=_quantization_config(config))


def _quantization_config(config: Config) -> Mapping[str, Any]:
    given: Any = config.get("quantization_config") or {}
    if not isinstance(given, Mapping):
        raise CaseError(f"hf_config.quantization_config is {given!r}; it must be a mapping")
    return cast("Mapping[str, Any]", given)


def _size(config: Config, key: str, default: int | None = None, *, least: int = 1) -> int:
    value = config.get(key, default)
    if value is None:
        raise CaseError(f"hf_config has no {key}, which a {config.get('model_type')} model needs")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        raise CaseError(f"hf_config.{key} is {value!r}; it must be a whole number from {least} to 2^24")
    return value


def model_of(arch: Architecture) -> ServedModel:
    """Return what serving needs of an architecture."""
    norm = norm_width(arch) * (2 if has_norm_bias(arch) else 1)
    beside = (arch.vocab if arch.head_bias else 0) + (norm if arch.embedding_norm else 0)
    latent, experts = arch.latent, arch.experts
    return ServedModel(
        model_type=arch.model_type,
        layers=arch.layers,
        hidden=arch.hidden,
        heads=arch.heads,
        kv_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        ffn=arch.ffn,
        vocab=arch.vocab,
        tied=arch.tied,
        max_positions=arch.max_positions,
        norm_elements=len(norm_names(arch)) * norm + sum(inner_norms(arch).values()) + _shared_gate(arch),
        outer_elements=norm + beside,
        mla=latent and Mla(latent.q_rank, latent.kv_rank, latent.rope, latent.nope, latent.value),
        moe=experts
        and Moe(
            experts=experts.count,
            per_token=experts.per_token,
            ffn=experts.ffn,
            shared_ffn=experts.shared_ffn,
            dense_layers=len(experts.dense_layers),
        ),
        gated=arch.gated,
        feed_copies=_FEED_COPIES.get(arch.mlp, 2),
        rotary_width=_rotary_width(arch),
        learned_positions=arch.learned_positions,
        qkv_bias=arch.qkv_bias,
        out_bias=arch.out_bias,
        mlp_bias=arch.mlp_bias,
        router_bias=latent is not None and arch.model_type != "deepseek_v2",  # `e_score_correction_bias`
        window=arch.sliding_window,
        window_layers=_window_layers(arch),
    )


def _shared_gate(arch: Architecture) -> int:
    """Qwen 2 MoE: the gate of the shared expert, kept in the model's type like a norm."""
    return arch.hidden if arch.experts is not None and arch.experts.shared_gate else 0


def _rotary_width(arch: Architecture) -> int:
    if arch.latent is not None:
        return arch.latent.rope
    return 0 if arch.rotary is Rotary.none else arch.rotary_width or arch.head_dim


def _window_layers(arch: Architecture) -> int:
    if arch.sliding_window is None:
        return 0
    return len(arch.windowed_layers) or arch.layers


def _gpt_oss(config: Config) -> ServedModel:
    """Source: transformers 5.23 `models/gpt_oss`: every second layer has a window, each head a sink."""
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    layers, types = _size(config, "num_hidden_layers"), config.get("layer_types")
    named = cast("list[Any]", types) if isinstance(types, list) else []
    ffn = _size(config, "intermediate_size")
    head_dim = _size(config, "head_dim", 64)
    return ServedModel(
        model_type=GPT_OSS,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", 8),
        head_dim=head_dim,
        ffn=ffn,
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=_size(config, "max_position_embeddings", 131_072),
        norm_elements=2 * hidden + heads,
        outer_elements=hidden,
        moe=Moe(_size(config, "num_local_experts"), _size(config, "num_experts_per_tok", 4), ffn),
        rotary_width=head_dim,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        router_bias=True,
        window=_size(config, "sliding_window", 128),
        window_layers=named.count("sliding_attention") if named else (layers + 1) // 2,
    )
