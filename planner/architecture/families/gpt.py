"""GPT-2 and the families of its time: LayerNorm, feed-forward parts without a gate, fused projections."""

from __future__ import annotations

from typing import Any

from planner.architecture.families.reading import (
    Config,
    Reader,
    decoder,
    flag,
    rate,
    rotary_width,
    size,
    word,
)
from planner.architecture.spec import Architecture, Block, Mlp, Norm, Rotary
from planner.errors import CaseError

_DENSE = ("dense_h_to_4h", "dense_4h_to_h")
_FULL_BIAS = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}


def _gelu(config: Config, key: str, default: str) -> Mlp:
    known = ("gelu", "gelu_new", "gelu_pytorch_tanh")
    return Mlp.gelu_new if word(config, key, default, known) == "gelu_new" else Mlp.gelu


def _gpt2_like(config: Config, **habits: Any) -> Architecture:
    """Keys of GPT-2: n_embd, n_layer and so on."""
    hidden, heads = size(config, "n_embd", 768), size(config, "n_head", 12)
    if hidden % heads:
        raise CaseError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    dropout = rate(config, "resid_pdrop", 0.1)
    base: dict[str, Any] = {
        "model_type": str(config.get("model_type")),
        "layers": size(config, "n_layer", 12),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn": 4 * hidden if config.get("n_inner") is None else size(config, "n_inner"),
        "vocab": size(config, "vocab_size", 50257),
        "tied": flag(config, "tie_word_embeddings", default=True),
        "norm": Norm.layer,
        "mlp_names": ("c_fc", "mlp.c_proj"),
        "rotary": Rotary.none,
        "max_positions": size(config, "n_positions", 1024),
        "learned_positions": size(config, "n_positions", 1024),
        "fused_qkv": "c_attn",
        "out_name": "attn.c_proj",
        "hidden_dropout": dropout,
        "embedding_dropout": rate(config, "embd_pdrop", 0.1),
        "attention_dropout": rate(config, "attn_pdrop", 0.1),
        **_FULL_BIAS,
    }
    return Architecture(**(base | habits))


def _gpt2(config: Config) -> Architecture:
    return _gpt2_like(config, narrow_softmax=True, mlp=_gelu(config, "activation_function", "gelu_new"))


def _gpt_bigcode(config: Config) -> Architecture:
    heads = size(config, "n_head", 12)
    groups = 1 if flag(config, "multi_query", default=True) else heads
    return _gpt2_like(config, kv_heads=groups, mlp=_gelu(config, "activation_function", "gelu_pytorch_tanh"))


def _opt(config: Config) -> Architecture:
    hidden = size(config, "hidden_size", 768)
    width = config.get("word_embed_proj_dim", hidden)
    if width != hidden:
        raise CaseError(f"OPT with word_embed_proj_dim {width} unlike hidden_size {hidden} is not supported")
    positions = size(config, "max_position_embeddings", 2048)
    defaults = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 50272}
    return decoder(
        {**defaults, **config},
        tied=True,
        ffn=size(config, "ffn_dim", 3072),
        norm=Norm.layer,
        mlp=Mlp.relu,
        mlp_names=("fc1", "fc2"),
        rotary=Rotary.none,
        learned_positions=positions + 2,  # OPTLearnedPositionalEmbedding offsets by two
        out_name="out_proj",
        hidden_dropout=rate(config, "dropout", 0.1),
        **_FULL_BIAS,
    )


def _phi(config: Config) -> Architecture:
    if flag(config, "qk_layernorm"):
        raise CaseError(
            "hf_config.qk_layernorm: Phi's norm of queries and keys is not supported by the formula tier"
        )
    width = size(config, "hidden_size") // size(config, "num_attention_heads")
    return decoder(
        config,
        norm=Norm.layer,
        block=Block.parallel,
        mlp=_gelu(config, "hidden_act", "gelu_new"),
        mlp_names=("fc1", "fc2"),
        rotary=Rotary.partial,
        rotary_width=rotary_width(config, width, 0.5),
        out_name="dense",
        head_bias=True,
        hidden_dropout=rate(config, "resid_pdrop", 0.0),
        embedding_dropout=rate(config, "embd_pdrop", 0.0),
        **_FULL_BIAS,
    )


def _gpt_neox(config: Config) -> Architecture:
    width = size(config, "hidden_size") // size(config, "num_attention_heads")
    bias = flag(config, "attention_bias", default=True)
    parallel = flag(config, "use_parallel_residual", default=True)
    return decoder(
        {**config, "num_key_value_heads": None},
        norm=Norm.layer,
        block=Block.parallel_two_norms if parallel else Block.sequential,
        mlp=_gelu(config, "hidden_act", "gelu"),
        mlp_names=_DENSE,
        rotary=Rotary.partial,
        rotary_width=rotary_width(config, width, 0.25),
        fused_qkv="query_key_value",
        out_name="dense",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        hidden_dropout=rate(config, "hidden_dropout", 0.0),
        embedding_dropout=rate(config, "hidden_dropout", 0.0),
    )


def _falcon(config: Config) -> Architecture:
    if flag(config, "alibi"):
        raise CaseError("hf_config.alibi: Falcon with alibi positions is not supported by the formula tier")
    new, heads = flag(config, "new_decoder_architecture"), size(config, "num_attention_heads", 71)
    groups = 1 if flag(config, "multi_query", default=True) else heads
    groups = size(config, "num_kv_heads", heads) if new else groups
    two = new and config.get("num_ln_in_parallel_attn", 2) in (2, None)
    parallel = new or flag(config, "parallel_attn", default=True)
    bias = flag(config, "bias")
    shared = {"hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32, "vocab_size": 65024}
    base = {**shared, **config, "num_key_value_heads": groups}
    return decoder(
        base,
        tied=True,
        ffn=4 * size(base, "hidden_size")
        if config.get("ffn_hidden_size") is None
        else size(config, "ffn_hidden_size"),
        norm=Norm.layer,
        block=Block.parallel_two_norms if two else Block.parallel if parallel else Block.sequential,
        mlp=_gelu(config, "activation", "gelu"),
        mlp_names=_DENSE,
        fused_qkv="query_key_value",
        out_name="dense",
        copied_keys=new or groups == 1,
        spread_keys=new,
        always_masked=True,
        narrow_softmax=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        hidden_dropout=rate(config, "hidden_dropout", 0.0),
    )


def _bloom(config: Config) -> Architecture:
    if flag(config, "apply_residual_connection_post_layernorm"):
        raise CaseError(
            "hf_config.apply_residual_connection_post_layernorm is not supported by the formula tier"
        )
    base = {
        "hidden_size": config.get("n_embed") or 64,
        "num_hidden_layers": config.get("n_layer", 2),
        "num_attention_heads": config.get("n_head", 8),
        "vocab_size": 250880,
        **config,
    }
    return decoder(
        base,
        tied=True,
        ffn=4 * size(base, "hidden_size"),
        norm=Norm.layer,
        embedding_norm=True,
        sdpa=False,
        mlp=Mlp.gelu_bloom,
        mlp_names=_DENSE,
        rotary=Rotary.none,
        fused_qkv="query_key_value",
        out_name="dense",
        hidden_dropout=rate(config, "hidden_dropout", 0.0),
        **_FULL_BIAS,
    )


FAMILIES: dict[str, Reader] = {
    "gpt2": _gpt2,
    "opt": _opt,
    "phi": _phi,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "bloom": _bloom,
    "gpt_bigcode": _gpt_bigcode,
}
