"""One small configuration a family, with the ratios of its real models; keys left out test our defaults."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4000,
    "max_position_embeddings": 1024,
}

MOE = {**BASE, "moe_intermediate_size": 192}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "mistral": {**BASE, "sliding_window": None},
    "mistral windowed": {"model_type": "mistral", **BASE, "sliding_window": 128},
    "qwen2": {**BASE, "tie_word_embeddings": True},
    "qwen3": {**BASE, "head_dim": 128},
    "gemma": {**BASE, "head_dim": 128},
    "gemma one key": {"model_type": "gemma", **BASE, "head_dim": 128, "num_key_value_heads": 1},
    "gemma2": {**BASE, "head_dim": 128},
    "gemma3_text": {**BASE, "head_dim": 128, "vocab_size": 8000},
    "gemma3_text windowed": {
        "model_type": "gemma3_text", **BASE, "head_dim": 128, "vocab_size": 8000, "sliding_window": 128,
        "sliding_window_pattern": 3,
    },
    "phi3": {**BASE, "num_key_value_heads": 4, "pad_token_id": 0},
    "gpt2": {"n_embd": 256, "n_layer": 3, "n_head": 4, "vocab_size": 4000},
    "opt": {
        "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 4000,
        "word_embed_proj_dim": 256,
    },
    "mixtral": {**BASE, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {**MOE, "num_experts": 12, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 704},
    "qwen3_moe": {**MOE, "head_dim": 128, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True},
    "olmoe": {**BASE, "intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 4},
    "deepseek_v3": {
        **MOE, "num_key_value_heads": 4, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
        "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
        "first_k_dense_replace": 1,
    },
    "deepseek_v2": {
        **MOE, "num_key_value_heads": 4, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
        "q_lora_rank": None, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
        "first_k_dense_replace": 1,
    },
    "phi": {**BASE, "num_key_value_heads": 4},
    "gpt_neox": {**BASE, "intermediate_size": 1024},
    "falcon": {k: v for k, v in BASE.items() if k not in ("num_key_value_heads", "intermediate_size")},
    "falcon new": {
        "model_type": "falcon", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_kv_heads": 2,
        "vocab_size": 4000, "new_decoder_architecture": True,
    },
    "granite": BASE,
    "olmo": BASE,
    "olmo2": BASE,
    "olmo3": {**BASE, "num_hidden_layers": 4, "sliding_window": 128},
    "seed_oss": {**BASE, "attention_dropout": 0.0},  # the math kernel drops out otherwise on the meta device
    "ministral3": {**BASE, "head_dim": 64, "num_hidden_layers": 2},
    "cohere2": {**BASE, "num_hidden_layers": 4, "sliding_window": 128},
    "smollm3": {**BASE, "num_hidden_layers": 4, "pad_token_id": 0},
    "starcoder2": {**BASE, "intermediate_size": 1024},
    "stablelm": BASE,
    "stablelm parallel": {"model_type": "stablelm", **BASE, "use_parallel_residual": True},
    "cohere": BASE,
    "cohere norm": {"model_type": "cohere", **BASE, "use_qk_norm": True},
    "glm": {**BASE, "head_dim": 64, "pad_token_id": 0},
    "glm4": {**BASE, "head_dim": 64, "pad_token_id": 0},
    "ministral": {**BASE, "head_dim": 64},
    "internlm3": {**BASE, "head_dim": 64, "qkv_bias": True, "bias": True},
    "bloom": {"hidden_size": 256, "n_layer": 3, "n_head": 4, "vocab_size": 4000},
    "gpt_bigcode": {"attn_pdrop": 0.0, "n_embd": 256, "n_layer": 3, "n_head": 4, "vocab_size": 4000},
}  # fmt: skip

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
# What LoRA adapts; everywhere else all-linear. Peft's adapters on stacked experts are not planned.
LATENT = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
TARGETS = {
    "mixtral": ATTENTION,
    "qwen3_moe": ATTENTION,
    "olmoe": ATTENTION,
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}


def config_of(family: str) -> dict[str, Any]:
    """The family's small configuration with its model_type."""
    return {"model_type": family, **CONFIGS[family]}
