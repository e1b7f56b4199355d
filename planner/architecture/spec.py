"""What the planner needs to know of a decoder-only transformer: sizes and a few habits of its code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Norm(Enum):
    """How a normalisation is written in transformers; this decides what it keeps for backward."""

    rms = "rms"  # llama: scale in the weight's type
    rms_fp32 = "rms_fp32"  # gemma: scale by 1 + weight in fp32
    rms_wide = "rms_wide"  # olmo 2: scale in fp32, with the weight as it is
    layer = "layer"  # torch.nn.LayerNorm
    layer_fp32 = "layer_fp32"  # cohere: written out in fp32, no bias
    bare = "bare"  # olmo: LayerNorm in fp32 without parameters


class Mlp(Enum):
    """How the feed-forward part is written."""

    gated = "gated"  # down(act(gate(x)) * up(x))
    fused_gated = "fused_gated"  # phi3, glm: one projection for gate and up
    gelu = "gelu"  # one ATen operator between two linear layers
    gelu_new = "gelu_new"  # gpt2: tanh approximation spelt out in Python
    gelu_bloom = "gelu_bloom"  # bloom: the same as an autograd function
    relu = "relu"  # opt
    moe = "moe"  # mixtral, qwen-moe: a router and gated experts


class Block(Enum):
    """How norms and residual sums stand around attention and the feed-forward part."""

    sequential = "sequential"  # x + attention(norm(x)), then x + mlp(norm(x))
    sandwich = "sandwich"  # gemma 2 and 3, glm 4: the outputs are normalised too
    post = "post"  # olmo 2: only the outputs are normalised
    parallel = "parallel"  # phi, falcon 7b, cohere: x + attention(n) + mlp(n) with n = norm(x)
    parallel_two_norms = "parallel_two_norms"  # gpt-neox, falcon 40b: a norm for each


class Rotary(Enum):
    """How positions enter queries and keys."""

    none = "none"  # learned positions, or alibi
    full = "full"  # llama: x * cos + rotate_half(x) * sin
    partial = "partial"  # phi, gpt-neox: part of each head turns and is concatenated with the rest
    fp32_tables = "fp32_tables"  # olmo: cos and sin stay fp32, so the products are
    fp32 = "fp32"  # cohere: all of it in fp32


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention of DeepSeek: ranks and widths. `q_rank` 0: queries are projected whole."""

    q_rank: int
    kv_rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True)
class Experts:
    """A mixture of gated experts in each block but the first `dense_layers` ones or those named."""

    count: int
    per_token: int
    ffn: int
    shared_ffn: int = 0
    """Width of the expert that sees every token; 0: none."""
    shared_gate: bool = False
    """Qwen 2 weighs the shared expert by a gate of its own."""
    normalised: bool = False
    """Weights of the chosen experts are divided by their sum."""
    wide_weights: bool = False
    """Mixtral leaves the weights of the chosen experts in fp32."""
    wide_router: bool = False
    """DeepSeek's router computes in fp32."""
    dense_layers: tuple[int, ...] = ()


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
    norm_bias: bool = True
    """Whether a LayerNorm has a bias; an RMSNorm never has."""
    mlp: Mlp = Mlp.gated
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    block: Block = Block.sequential
    rotary: Rotary = Rotary.full
    rotary_width: int = 0
    """Elements of a head that turn, where not all of them do."""
    max_positions: int = 0
    learned_positions: int = 0
    """Rows of a learned position table; 0 means none."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    fused_qkv: str = ""
    """Name of the fused projection (c_attn, qkv_proj); empty: q_proj, k_proj and v_proj."""
    out_name: str = "o_proj"
    qk_norm: bool = False
    """Qwen 3 and Gemma 3 normalise queries and keys per head."""
    qk_norm_whole: bool = False
    """OLMo 2 normalises queries and keys over all heads at once."""
    qk_norm_heads: bool = False
    """Cohere normalises per head with weights of each head's own."""
    copied_keys: bool = False
    """Falcon picks keys and values out of its fused projection by index, which copies them."""
    spread_keys: bool = False
    """Falcon 40B then repeats them for each query head, before they turn."""
    always_masked: bool = False
    """Falcon makes a mask also where attention would need none."""
    narrow_softmax: bool = False
    """GPT-2's and Falcon's eager softmax stays in the type of the scores."""
    rotary_per_kind: bool = False
    """Gemma 3 turns blocks with a window by tables of their own."""
    scaled_queries: bool = False
    """Ministral 3 scales queries by their position after they turned."""
    interleaved_tables: bool = False
    """GLM spreads cosines and sines anew in each block."""
    scaled_embedding: bool = False
    """Gemma's embedding module multiplies what it looks up."""
    scaled_inputs: bool = False
    """Granite multiplies the embedding module's output."""
    embedding_norm: bool = False
    scaled_residual: bool = False
    """Granite multiplies what attention and MLP add."""
    attention_softcap: bool = False
    logit_softcap: bool = False
    scaled_logits: bool = False
    hidden_dropout: float = 0.0
    mlp_dropout: float = 0.0
    """StableLM drops out of the feed-forward part alone."""
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    experts: Experts | None = None
    latent: Latent | None = None
    sliding_window: int | None = None
    windowed_layers: tuple[int, ...] = ()
    """Blocks that see a sliding window only."""
    unrotated_layers: tuple[int, ...] = ()
    """SmolLM 3 leaves positions out of some layers."""
    widths: tuple[int, ...] = ()
    """Of a perceptron: inputs first, classes last. Nothing else here speaks of one then."""
    sdpa: bool = True
    """Whether transformers runs the family with sdpa; where not, it wants eager."""

    @property
    def q_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    @property
    def qk_norm_inline(self) -> bool:
        """Whether each projection is normalised at once; Gemma 3 and Cohere do so when all are there."""
        return self.qk_norm_whole or (self.qk_norm and self.model_type.startswith("qwen3"))

    @property
    def global_layers(self) -> int:
        """Blocks with full attention where others use a sliding window; 0: all alike."""
        windows = sum(index < self.layers for index in self.windowed_layers)
        return self.layers - windows if windows else 0

    @property
    def gated(self) -> bool:
        """Whether the feed-forward part multiplies by a gate."""
        return self.mlp in (Mlp.gated, Mlp.fused_gated, Mlp.moe)
