"""From a Hugging Face `config.json` to an `Architecture`: one function per family, one registry.

Defaults are those of transformers 5.17-5.24. A family that is not here is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.architecture.spec import Architecture, Mlp, Norm
from planner.errors import CaseError, did_you_mean

Config = Mapping[str, Any]
Reader = Callable[[Config], Architecture]

_LARGEST = 1 << 24


def _size(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if value is None:
        raise CaseError(f"hf_config has no {key}, which a {config.get('model_type')} model needs")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
        raise CaseError(f"hf_config.{key} is {value!r}; it must be a whole number above 0 and below 2^24")
    return value


def _rate(config: Config, key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise CaseError(f"hf_config.{key} is {value!r}; a dropout rate lies in [0, 1)")
    return float(value)


def _window(config: Config, default: int | None = None) -> int | None:
    """Tokens a sliding window sees; null turns it off."""
    key = "sliding_window"
    return None if config.get(key, default) is None else _size(config, key, default)


def _decoder(config: Config, *, tied: bool = False, **habits: Any) -> Architecture:
    """Keys that llama and most later families share."""
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    head_dim = config.get("head_dim")
    if head_dim is None and hidden % heads:
        raise CaseError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    kv_heads = _size(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise CaseError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    return Architecture(
        model_type=str(config.get("model_type")),
        layers=_size(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads if head_dim is None else _size(config, "head_dim"),
        ffn=_size(config, "intermediate_size"),
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", tied)),
        max_positions=_size(config, "max_position_embeddings", 2048),
        attention_dropout=_rate(config, "attention_dropout", 0.0),
        **habits,
    )


def _llama(config: Config) -> Architecture:
    bias = bool(config.get("attention_bias", False))
    return _decoder(config, qkv_bias=bias, out_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))


def _mistral(config: Config) -> Architecture:
    return _decoder({"num_key_value_heads": 8, **config}, sliding_window=_window(config))


def _qwen2(config: Config) -> Architecture:
    return _decoder({"num_key_value_heads": 32, **config}, qkv_bias=True)


def _qwen3(config: Config) -> Architecture:
    bias = bool(config.get("attention_bias", False))
    base = {"num_key_value_heads": 32, "head_dim": 128, **config}
    return _decoder(base, qk_norm=True, qkv_bias=bias, out_bias=bias)


def _gemma(config: Config) -> Architecture:
    base = {"head_dim": 256, **config}
    return _decoder(base, tied=True, norm=Norm.rms_fp32, scaled_embedding=True)


def _gemma2(config: Config) -> Architecture:
    base = {"head_dim": 256, "num_key_value_heads": 4, **config}
    return _decoder(
        base,
        tied=True,
        norm=Norm.rms_fp32,
        scaled_embedding=True,
        sandwich_norms=True,
        attention_softcap=config.get("attn_logit_softcapping", 50.0) is not None,
        logit_softcap=config.get("final_logit_softcapping", 30.0) is not None,
        sliding_window=_window(config, 4096),
        global_layers=_size(config, "num_hidden_layers") // 2,
    )


def _gemma3(config: Config) -> Architecture:
    base = {"head_dim": 256, "num_key_value_heads": 4, **config}
    pattern = next((k for k in ("sliding_window_pattern", "_sliding_window_pattern") if k in config), "")
    every = _size(config, pattern) if pattern else 6
    return _decoder(
        base,
        tied=True,
        norm=Norm.rms_fp32,
        scaled_embedding=True,
        sandwich_norms=True,
        qk_norm=True,
        sliding_window=_window(config, 512),
        global_layers=_size(config, "num_hidden_layers") // every,
    )


def _phi3(config: Config) -> Architecture:
    base = _decoder(config, fused_qkv="qkv_proj", mlp=Mlp.fused_gated, concatenated_rotary=True)
    return replace(base, hidden_dropout=_rate(config, "resid_pdrop", 0.0))


def _mixtral(config: Config) -> Architecture:
    base = {"num_key_value_heads": 8, **config}
    return _decoder(
        base,
        mlp=Mlp.moe,
        experts=_size(config, "num_local_experts", 8),
        experts_per_token=_size(config, "num_experts_per_tok", 2),
        verified=False,
    )


def _gpt2(config: Config) -> Architecture:
    hidden, heads = _size(config, "n_embd", 768), _size(config, "n_head", 12)
    return Architecture(
        model_type="gpt2",
        layers=_size(config, "n_layer", 12),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden if config.get("n_inner") is None else _size(config, "n_inner"),
        vocab=_size(config, "vocab_size", 50257),
        tied=bool(config.get("tie_word_embeddings", True)),
        norm=Norm.layer,
        mlp=Mlp.gelu_new,
        max_positions=_size(config, "n_positions", 1024),
        learned_positions=_size(config, "n_positions", 1024),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        fused_qkv="c_attn",
        hidden_dropout=_rate(config, "resid_pdrop", 0.1),
        attention_dropout=_rate(config, "attn_pdrop", 0.1),
    )


def _opt(config: Config) -> Architecture:
    hidden, heads = _size(config, "hidden_size", 768), _size(config, "num_attention_heads", 12)
    width = config.get("word_embed_proj_dim", hidden)
    if width != hidden:
        raise CaseError(f"OPT with word_embed_proj_dim {width} unlike hidden_size {hidden} is not supported")
    positions = _size(config, "max_position_embeddings", 2048)
    return Architecture(
        model_type="opt",
        layers=_size(config, "num_hidden_layers", 12),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=_size(config, "ffn_dim", 3072),
        vocab=_size(config, "vocab_size", 50272),
        tied=bool(config.get("tie_word_embeddings", True)),
        norm=Norm.layer,
        mlp=Mlp.relu,
        max_positions=positions,
        learned_positions=positions + 2,  # OPTLearnedPositionalEmbedding offsets by two
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        hidden_dropout=_rate(config, "dropout", 0.1),
        attention_dropout=_rate(config, "attention_dropout", 0.0),
    )


FAMILIES: dict[str, Reader] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "mixtral": _mixtral,
    "gpt2": _gpt2,
    "opt": _opt,
}


def architecture_of(config: Config) -> Architecture:
    """Read a Hugging Face configuration.

    Raises:
        CaseError: for a family that is not known, or a key that is missing or absurd.
    """
    if not config.get("model_type"):
        raise CaseError(f"hf_config has no model_type. {did_you_mean('', FAMILIES)}")
    family = str(config["model_type"])
    reader = FAMILIES.get(family)
    if reader is None:
        raise CaseError(
            f"model_type {family!r} is not known to the formula tier. {did_you_mean(family, FAMILIES)}"
        )
    return reader(config)
