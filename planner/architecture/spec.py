"""What the planner needs to know of a decoder-only transformer: sizes and a few habits of its code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Norm(Enum):
    """How a normalisation is written in transformers; this decides what it keeps for backward."""

    rms = "rms"  # llama: scale in the weight's type
    rms_fp32 = "rms_fp32"  # gemma: scale in fp32
    layer = "layer"  # torch.nn.LayerNorm


class Mlp(Enum):
    """How the feed-forward part is written."""

    gated = "gated"  # down(act(gate(x)) * up(x))
    fused_gated = "fused_gated"  # phi3: one projection for gate and up
    gelu_new = "gelu_new"  # gpt2: tanh approximation spelt out in Python
    relu = "relu"  # opt
    moe = "moe"  # mixtral, qwen-moe: a router and gated experts


@dataclass(frozen=True)
class Architecture:
    """Shape of a model. Lengths are elements; `kv_heads`, `head_dim` and so on as in the literature."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    norm: Norm = Norm.rms
    mlp: Mlp = Mlp.gated
    max_positions: int = 0
    learned_positions: int = 0
    """Rows of a learned position table; 0 means rotary."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    fused_qkv: str = ""
    """Name of the fused projection (c_attn, qkv_proj); empty: q_proj, k_proj and v_proj."""
    sandwich_norms: bool = False
    """Gemma 2 and 3 normalise the output of attention and MLP too."""
    qk_norm: bool = False
    """Qwen 3 and Gemma 3 normalise queries and keys per head."""
    concatenated_rotary: bool = False
    """Phi 3 turns part of each head and concatenates: queries change their memory layout."""
    scaled_embedding: bool = False
    attention_softcap: bool = False
    logit_softcap: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    sliding_window: int | None = None
    global_layers: int = 0
    """Layers with full attention where others use a sliding window; 0: all alike."""
    verified: bool = True

    @property
    def q_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim
