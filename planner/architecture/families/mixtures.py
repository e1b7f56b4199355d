"""Mixtures of experts, and the latent attention of DeepSeek."""

from __future__ import annotations

from typing import Any, cast

from planner.architecture.families.decoders import biases
from planner.architecture.families.reading import Config, Reader, decoder, flag, size
from planner.architecture.spec import Architecture, Experts, Latent, Mlp, Rotary
from planner.errors import CaseError


def _dense_layers(config: Config) -> tuple[int, ...]:
    """Blocks without experts: those listed in `mlp_only_layers`, and all but each `decoder_sparse_step`th."""
    step, layers = size(config, "decoder_sparse_step", 1), size(config, "num_hidden_layers")
    listed: Any = config.get("mlp_only_layers") or []
    if not isinstance(listed, (list, tuple)):
        raise CaseError(f"hf_config.mlp_only_layers is {listed!r}; it must be a list of layer numbers")
    only = cast("list[Any]", listed)
    return tuple(i for i in range(layers) if i in only or (i + 1) % step)


def _checked(experts: Experts) -> Experts:
    if experts.per_token > experts.count:
        raise CaseError(
            f"num_experts_per_tok is {experts.per_token}, but a block has {experts.count} experts"
        )
    return experts


def _mixtral(config: Config) -> Architecture:
    experts = Experts(
        count=size(config, "num_local_experts", 8),
        per_token=size(config, "num_experts_per_tok", 2),
        ffn=size(config, "intermediate_size"),
        normalised=True,
        wide_weights=True,
    )
    return decoder({"num_key_value_heads": 8, **config}, mlp=Mlp.moe, experts=_checked(experts))


def _qwen2_moe(config: Config) -> Architecture:
    experts = Experts(
        count=size(config, "num_experts", 60),
        per_token=size(config, "num_experts_per_tok", 4),
        ffn=size(config, "moe_intermediate_size", 1408),
        shared_ffn=size(config, "shared_expert_intermediate_size", 5632),
        shared_gate=True,
        normalised=flag(config, "norm_topk_prob"),
        dense_layers=_dense_layers(config),
    )
    base = {"num_key_value_heads": 16, "intermediate_size": 5632, **config}
    return decoder(
        base, qkv_bias=flag(config, "qkv_bias", default=True), mlp=Mlp.moe, experts=_checked(experts)
    )


def _qwen3_moe(config: Config) -> Architecture:
    experts = Experts(
        count=size(config, "num_experts", size(config, "num_local_experts", 128)),
        per_token=size(config, "num_experts_per_tok", 8),
        ffn=size(config, "moe_intermediate_size", 768),
        normalised=flag(config, "norm_topk_prob"),
        dense_layers=_dense_layers(config),
    )
    base = {"num_key_value_heads": 4, "intermediate_size": 6144, **config}
    return decoder(
        base, qk_norm=True, mlp=Mlp.moe, experts=_checked(experts), **(biases(config) | {"mlp_bias": False})
    )


def _olmoe(config: Config) -> Architecture:
    if config.get("clip_qkv") is not None:
        raise CaseError(
            "hf_config.clip_qkv is set: clipped queries and keys are not supported by the formula tier"
        )
    experts = Experts(
        count=size(config, "num_experts", 64),
        per_token=size(config, "num_experts_per_tok", 8),
        ffn=size(config, "intermediate_size", 2048),
        normalised=flag(config, "norm_topk_prob"),
    )
    base = {"intermediate_size": 2048, **config}
    return decoder(
        base,
        qk_norm_whole=True,
        mlp=Mlp.moe,
        experts=_checked(experts),
        **(biases(config) | {"mlp_bias": False}),
    )


def _deepseek(config: Config) -> Architecture:
    """DeepSeek V2 and V3: sizes are right; what attention keeps for backward is not modelled."""
    third = config.get("model_type") == "deepseek_v3"
    latent = Latent(
        q_rank=0 if config.get("q_lora_rank", 1536) is None else size(config, "q_lora_rank", 1536),
        kv_rank=size(config, "kv_lora_rank", 512),
        rope=size(config, "qk_rope_head_dim", 64),
        nope=size(config, "qk_nope_head_dim", 128),
        value=size(config, "v_head_dim", 128),
    )
    ffn = size(config, "moe_intermediate_size", 2048 if third else 1407)
    layers = size(config, "num_hidden_layers")
    experts = Experts(
        count=size(config, "n_routed_experts", 256 if third else 64),
        per_token=size(config, "num_experts_per_tok", 8 if third else None),
        ffn=ffn,
        shared_ffn=ffn * size(config, "n_shared_experts", 1 if third else 2),
        normalised=flag(config, "norm_topk_prob", default=third),
        wide_weights=True,
        wide_router=True,
        dense_layers=tuple(
            range(min(layers, size(config, "first_k_dense_replace", 3 if third else 0, least=0)))
        ),
    )
    base = {
        **config,
        "num_key_value_heads": config.get("num_attention_heads"),
        "head_dim": latent.rope + latent.nope,
    }
    return decoder(
        base,
        mlp=Mlp.moe,
        experts=_checked(experts),
        latent=latent,
        rotary=Rotary.full,
        rotary_width=latent.rope,
        **biases(config),
    )


FAMILIES: dict[str, Reader] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
