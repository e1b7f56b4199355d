"""Llama and the families that follow its keys: rotary positions, gated feed-forward parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.architecture.families.reading import (
    Config,
    Reader,
    decoder,
    flag,
    heads_of,
    layer_indices,
    rate,
    rotary_width,
    size,
    window,
    windowed,
    word,
)
from planner.architecture.spec import Architecture, Block, Mlp, Norm, Rotary
from planner.errors import CaseError


def biases(config: Config, *, attention: bool = False) -> dict[str, Any]:
    """`attention_bias` puts one on every projection of attention, `mlp_bias` on those of the MLP."""
    bias = flag(config, "attention_bias", attention)
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": flag(config, "mlp_bias")}


def _no_clipping(config: Config) -> None:
    if config.get("clip_qkv") is not None:
        raise CaseError(
            "hf_config.clip_qkv is set: clipped queries and keys are not supported by the formula tier"
        )


def _llama(config: Config) -> Architecture:
    return decoder(config, **biases(config))


def _mistral(config: Config) -> Architecture:
    span = window(config)
    layers = windowed(config, 0) if span else ()
    return decoder({"num_key_value_heads": 8, **config}, sliding_window=span, windowed_layers=layers)


def _ministral(config: Config) -> Architecture:
    span = window(config, 4096)
    layers = windowed(config, 0) if span else ()
    return decoder({"num_key_value_heads": 8, **config}, sliding_window=span, windowed_layers=layers)


def _qwen2(config: Config) -> Architecture:
    return decoder({"num_key_value_heads": 32, **config}, qkv_bias=True)


def _qwen3(config: Config) -> Architecture:
    base = {"num_key_value_heads": 32, "head_dim": 128, **config}
    return decoder(base, qk_norm=True, **(biases(config) | {"mlp_bias": False}))


def _phi3(config: Config) -> Architecture:
    width = heads_of(config, size(config, "hidden_size"), size(config, "num_attention_heads"))
    return decoder(
        config,
        fused_qkv="qkv_proj",
        mlp=Mlp.fused_gated,
        mlp_names=("gate_up_proj", "down_proj"),
        rotary=Rotary.partial,
        rotary_width=rotary_width(config, width, 1.0),
        hidden_dropout=rate(config, "resid_pdrop", 0.0),
    )


def _granite(config: Config) -> Architecture:
    return decoder(config, scaled_inputs=True, scaled_residual=True, scaled_logits=True, **biases(config))


def _olmo(config: Config) -> Architecture:
    _no_clipping(config)
    habits = biases(config) | {"mlp_bias": False}
    return decoder(config, norm=Norm.bare, rotary=Rotary.fp32_tables, **habits)


def _olmo2(config: Config) -> Architecture:
    habits = biases(config) | {"mlp_bias": False}
    return decoder(
        config, norm=Norm.rms_wide, block=Block.post, rotary=Rotary.fp32_tables, qk_norm_whole=True, **habits
    )


def _olmo3(config: Config) -> Architecture:
    span = window(config, 4096)
    layers = windowed(config, 4) if span else ()
    return replace(_olmo2(config), sliding_window=span, windowed_layers=layers, rotary_per_kind=True)


def _ministral3(config: Config) -> Architecture:
    span = window(config)
    layers = windowed(config, 0) if span else ()
    base = {"num_key_value_heads": 8, "head_dim": 128, **config}
    return decoder(base, scaled_queries=True, sliding_window=span, windowed_layers=layers)


def _seed_oss(config: Config) -> Architecture:
    base = {"num_key_value_heads": 8, "head_dim": 128, "attention_dropout": 0.1, **config}
    return decoder(
        base,
        qkv_bias=flag(config, "attention_bias", default=True),
        out_bias=flag(config, "attention_out_bias"),
        mlp_bias=flag(config, "mlp_bias"),
        hidden_dropout=rate(config, "residual_dropout", 0.1),
    )


def _smollm3(config: Config) -> Architecture:
    skipped = layer_indices(config, "no_rope_layers", 0)
    if skipped is None:
        every = size(config, "no_rope_layer_interval", 4)
        skipped = tuple(range(every - 1, size(config, "num_hidden_layers"), every))
    base = {"num_key_value_heads": 4, **config}
    return decoder(base, tied=True, unrotated_layers=skipped, **biases(config))


def _stablelm(config: Config) -> Architecture:
    if flag(config, "qk_layernorm"):
        raise CaseError(
            "hf_config.qk_layernorm: StableLM's norm per head is not supported by the formula tier"
        )
    width = heads_of(config, size(config, "hidden_size"), size(config, "num_attention_heads"))
    parallel = flag(config, "use_parallel_residual")
    return decoder(
        {"num_key_value_heads": 32, **config},
        norm=Norm.layer,
        block=Block.parallel if parallel else Block.sequential,
        rotary=Rotary.partial,
        rotary_width=rotary_width(config, width, 0.25),
        qkv_bias=flag(config, "use_qkv_bias"),
        mlp_dropout=rate(config, "hidden_dropout", 0.0),
    )


def _cohere(config: Config) -> Architecture:
    habits = biases(config) | {"mlp_bias": False}
    return decoder(
        config,
        tied=True,
        norm=Norm.layer_fp32,
        block=Block.parallel,
        rotary=Rotary.fp32,
        qk_norm_heads=flag(config, "use_qk_norm"),
        scaled_logits=True,
        **habits,
    )


def _cohere2(config: Config) -> Architecture:
    """Blocks with a window turn, those without do not."""
    span = window(config, 4096)
    every = 4 if config.get("sliding_window_pattern") is None else size(config, "sliding_window_pattern")
    layers = windowed(config, every) if span else ()
    plain = tuple(i for i in range(size(config, "num_hidden_layers")) if i not in layers)
    return replace(
        _cohere({**config, "use_qk_norm": False}),
        sliding_window=span,
        windowed_layers=layers,
        unrotated_layers=plain,
    )


def _glm(config: Config) -> Architecture:
    return _any_glm(config, Block.sequential)


def _glm4(config: Config) -> Architecture:
    return _any_glm(config, Block.sandwich)


def _any_glm(config: Config, block: Block) -> Architecture:
    base = {"head_dim": 128, "num_key_value_heads": 2, **config}
    return decoder(
        base,
        block=block,
        mlp=Mlp.fused_gated,
        mlp_names=("gate_up_proj", "down_proj"),
        rotary=Rotary.partial,
        rotary_width=rotary_width(config, size(base, "head_dim"), 0.5),
        interleaved_tables=True,
        qkv_bias=flag(config, "attention_bias", default=True),
    )


def _internlm3(config: Config) -> Architecture:
    """Llama's code under other names: `qkv_bias` is `attention_bias`, `bias` is `mlp_bias`."""
    own = {"attention_bias": config.get("qkv_bias", False), "mlp_bias": config.get("bias", False)}
    base = {"num_key_value_heads": 2, "head_dim": 128, **own, **config}
    return decoder(base, **biases(base))


def _starcoder2(config: Config) -> Architecture:
    word(config, "hidden_act", "gelu_pytorch_tanh", ("gelu_pytorch_tanh", "gelu"))
    bias, span = flag(config, "use_bias", default=True), window(config)
    return decoder(
        {"num_key_value_heads": 2, **config},
        tied=True,
        norm=Norm.layer,
        mlp=Mlp.gelu,
        mlp_names=("c_fc", "c_proj"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        hidden_dropout=rate(config, "residual_dropout", 0.0),
        embedding_dropout=rate(config, "embedding_dropout", 0.0),
        sliding_window=span,
        windowed_layers=windowed(config, 0) if span else (),
    )


FAMILIES: dict[str, Reader] = {
    "llama": _llama,
    "mistral": _mistral,
    "ministral": _ministral,
    "ministral3": _ministral3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "granite": _granite,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "internlm3": _internlm3,
    "glm": _glm,
    "glm4": _glm4,
    "starcoder2": _starcoder2,
}
