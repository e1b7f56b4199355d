"""The modules of a network with their parameters, in the order in which transformers registers them.

A `Module` is what DeepSpeed hooks: a leaf with parameters of its own. Registration order decides which
part of the flat buffers a rank owns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from planner.architecture.spec import Architecture, Block, Mlp, Norm
from planner.tape.autograd import Parameter


class Module:
    """A leaf module: a weight, perhaps a bias, perhaps an adapter around it.

    `original` is the frozen weight that a trained copy stands in for (`modules_to_save`).
    """

    __slots__ = ("bias", "lora_a", "lora_b", "magnitude", "name", "original", "weight")

    def __init__(self, name: str, weight: Parameter, bias: Parameter | None = None) -> None:
        self.name, self.weight, self.bias = name, weight, bias
        self.lora_a: Module | None = None
        self.lora_b: Module | None = None
        self.magnitude: Module | None = None
        self.original: Parameter | None = None

    def own(self) -> list[Parameter]:
        """Parameters that are this module's alone."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def all(self) -> Iterator[Parameter]:
        """Own parameters, then those of the adapters."""
        if self.original is not None:
            yield self.original
        yield from self.own()
        for adapter in (self.lora_a, self.lora_b, self.magnitude):
            if adapter is not None:
                yield from adapter.own()


@dataclass(frozen=True)
class Tail:
    """How many operators of a block keep something, and what the way back meets before the last of them."""

    saved: int
    signals: tuple[Callable[[], None], ...]
    gradients: tuple[int, ...]
    """Bytes of gradients that need nothing kept."""


@dataclass
class Layer:
    """One transformer block: linear modules and norms by short name; `order` is that of registration."""

    linears: dict[str, Module]
    norms: dict[str, Module]
    order: tuple[str, ...]
    index: int = 0
    tails: dict[bool, Tail] = field(default_factory=lambda: {})
    """Where making it again ends, with its adapters and without."""

    def modules(self) -> Iterator[Module]:
        """In registration order."""
        for name in self.order:
            yield self.linears[name] if name in self.linears else self.norms[name]


class Weights(Protocol):
    """Whatever has parameters: all that main memory and disk depend on."""

    def parameters(self) -> list[Parameter]:
        """In the order of registration."""
        ...


@dataclass
class Network:
    """All modules of a model. `head` is None when the output layer is tied to the embedding."""

    embedding: Module
    layers: list[Layer]
    final_norm: Module
    positions: Module | None = None
    embedding_norm: Module | None = None
    head: Module | None = None
    final_norm_first: bool = False
    """OPT registers its last norm before its blocks."""
    _order: list[Parameter] = field(default_factory=lambda: [])

    def modules(self) -> Iterator[Module]:
        """In registration order."""
        yield self.embedding
        if self.positions is not None:
            yield self.positions
        if self.embedding_norm is not None:
            yield self.embedding_norm
        if self.final_norm_first:
            yield self.final_norm
        for layer in self.layers:
            yield from layer.modules()
        if not self.final_norm_first:
            yield self.final_norm
        if self.head is not None:
            yield self.head

    def parameters(self) -> list[Parameter]:
        """Every parameter once, in registration order."""
        if not self._order:
            self._order = [p for module in self.modules() for p in module.all()]
        return self._order

    @property
    def output(self) -> Module:
        """The module that makes the logits."""
        return self.embedding if self.head is None else self.head


Shapes = dict[str, tuple[int, ...]]


def linear_shapes(arch: Architecture, layer: int | None = None) -> dict[str, tuple[int, int, bool]]:
    """Linear modules of one block: name -> (out features, in features, bias).

    Args:
        arch: the model.
        layer: which block; None: all that some block has.
    """
    attention = _latent_shapes(arch) if arch.latent is not None else _attention_shapes(arch)
    if arch.mlp is not Mlp.moe:
        return {**attention, **_mlp_shapes(arch, arch.mlp_names, arch.ffn)}
    assert arch.experts is not None
    shapes = dict(attention)
    if arch.experts.dense_layers and (layer is None or layer in arch.experts.dense_layers):
        shapes |= _mlp_shapes(arch, arch.mlp_names, arch.ffn)
    if layer is None or layer not in arch.experts.dense_layers:
        shapes |= _shared_shapes(arch)
    return shapes


def stacked_shapes(arch: Architecture, layer: int) -> Shapes:
    """Router and stacked experts of one block: plain parameters, not linear modules.

    Source: transformers 5.23 `MixtralTopKRouter`, `MixtralExperts` and their like.
    """
    if arch.experts is None or layer in arch.experts.dense_layers:
        return {}
    e, h, f = arch.experts.count, arch.hidden, arch.experts.ffn
    return {"gate": (e, h), "experts.gate_up_proj": (e, 2 * f, h), "experts.down_proj": (e, h, f)}


def _attention_shapes(arch: Architecture) -> dict[str, tuple[int, int, bool]]:
    h, q, kv = arch.hidden, arch.q_width, arch.kv_width
    out = {arch.out_name: (h, q, arch.out_bias)}
    if arch.fused_qkv:
        fused = {arch.fused_qkv: (q + 2 * kv, h, arch.qkv_bias)}
        return {**out, **fused} if arch.model_type == "phi3" else {**fused, **out}
    names = ("k_proj", "v_proj", "q_proj") if arch.model_type == "opt" else ("q_proj", "k_proj", "v_proj")
    return {name: (q if name == "q_proj" else kv, h, arch.qkv_bias) for name in names} | out


def _latent_shapes(arch: Architecture) -> dict[str, tuple[int, int, bool]]:
    """DeepSeek V2 and V3. Source: transformers 5.23 `DeepseekV3Attention`."""
    latent, h, n = arch.latent, arch.hidden, arch.heads
    assert latent is not None
    wide, bias = n * (latent.nope + latent.rope), arch.qkv_bias
    if latent.q_rank:
        queries = {"q_a_proj": (latent.q_rank, h, bias), "q_b_proj": (wide, latent.q_rank, False)}
    else:
        queries = {"q_proj": (wide, h, False)}
    return {
        **queries,
        "kv_a_proj_with_mqa": (latent.kv_rank + latent.rope, h, bias),
        "kv_b_proj": (n * (latent.nope + latent.value), latent.kv_rank, False),
        "o_proj": (h, n * latent.value, bias),
    }


def _mlp_shapes(arch: Architecture, names: tuple[str, ...], ffn: int) -> dict[str, tuple[int, int, bool]]:
    h, bias = arch.hidden, arch.mlp_bias
    first = (2 * ffn if arch.mlp is Mlp.fused_gated else ffn, h, bias)
    return {**dict.fromkeys(names[:-1], first), names[-1]: (h, ffn, bias)}


def _shared_shapes(arch: Architecture) -> dict[str, tuple[int, int, bool]]:
    experts = arch.experts
    assert experts is not None
    if not experts.shared_ffn:
        return {}
    prefix = "shared_expert" if experts.shared_gate else "shared_experts"
    shapes = _mlp_shapes(arch, tuple(f"{prefix}.{n}" for n in arch.mlp_names), experts.shared_ffn)
    return {**shapes, "shared_expert_gate": (1, arch.hidden, False)} if experts.shared_gate else shapes


_NORMS = {
    Block.sequential: ("input_layernorm", "post_attention_layernorm"),
    Block.sandwich: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    Block.post: ("post_attention_layernorm", "post_feedforward_layernorm"),
    Block.parallel: ("input_layernorm",),
    Block.parallel_two_norms: ("input_layernorm", "post_attention_layernorm"),
}


def norm_names(arch: Architecture) -> tuple[str, ...]:
    """Norms of one block over the hidden width, in registration order."""
    return _NORMS[arch.block]


def norm_width(arch: Architecture) -> int:
    """Elements of a norm's weight: the hidden width, or nothing where norms have no parameters."""
    return 0 if arch.norm is Norm.bare else arch.hidden


def inner_norms(arch: Architecture) -> dict[str, int]:
    """Norms inside attention, by width."""
    if arch.latent is not None:
        ranks = {"q_a_layernorm": arch.latent.q_rank, "kv_a_layernorm": arch.latent.kv_rank}
        return {name: rank for name, rank in ranks.items() if rank}
    if arch.qk_norm_whole or arch.qk_norm_heads:
        return {"q_norm": arch.q_width, "k_norm": arch.kv_width}
    return {"q_norm": arch.head_dim, "k_norm": arch.head_dim} if arch.qk_norm else {}


def has_norm_bias(arch: Architecture) -> bool:
    """LayerNorm has a bias as a rule, RMSNorm has none."""
    return arch.norm is Norm.layer and arch.norm_bias
