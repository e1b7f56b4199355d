"""The modules of a network with their parameters, in the order in which transformers registers them.

A `Module` is what DeepSpeed hooks: a leaf with parameters of its own. Registration order decides which
part of the flat buffers a rank owns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.architecture.spec import Architecture, Mlp, Norm
from planner.tape.autograd import Parameter


class Module:
    """A leaf module: a weight, perhaps a bias, perhaps a LoRA pair around it."""

    __slots__ = ("bias", "lora_a", "lora_b", "name", "weight")

    def __init__(self, name: str, weight: Parameter, bias: Parameter | None = None) -> None:
        self.name, self.weight, self.bias = name, weight, bias
        self.lora_a: Module | None = None
        self.lora_b: Module | None = None

    def own(self) -> list[Parameter]:
        """Parameters that are this module's alone."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def all(self) -> Iterator[Parameter]:
        """Own parameters, then those of the adapters."""
        yield from self.own()
        for adapter in (self.lora_a, self.lora_b):
            if adapter is not None:
                yield from adapter.own()


@dataclass
class Layer:
    """One transformer block: its linear modules by short name, and its norms in order of use."""

    linears: dict[str, Module]
    norms: dict[str, Module]

    def modules(self) -> Iterator[Module]:
        """In registration order."""
        yield from self.linears.values()
        yield from self.norms.values()


@dataclass
class Network:
    """All modules of a model. `head` is None when the output layer is tied to the embedding."""

    embedding: Module
    layers: list[Layer]
    final_norm: Module
    positions: Module | None = None
    head: Module | None = None
    _order: list[Parameter] = field(default_factory=lambda: [])

    def modules(self) -> Iterator[Module]:
        """In registration order."""
        yield self.embedding
        if self.positions is not None:
            yield self.positions
        for layer in self.layers:
            yield from layer.modules()
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


def linear_shapes(arch: Architecture) -> dict[str, tuple[int, int, bool]]:
    """Linear modules of one block: name -> (out features, in features, bias)."""
    h, q, kv, f = arch.hidden, arch.q_width, arch.kv_width, arch.ffn
    out_name, names = "o_proj", ("q_proj", "k_proj", "v_proj")
    shapes: dict[str, tuple[int, int, bool]] = {}
    if arch.model_type == "gpt2":
        return {
            "c_attn": (q + 2 * kv, h, True),
            "attn.c_proj": (h, q, True),
            "c_fc": (f, h, True),
            "mlp.c_proj": (h, f, True),
        }
    if arch.model_type == "opt":
        out_name, names = "out_proj", ("k_proj", "v_proj", "q_proj")
    if arch.fused_qkv:
        shapes["o_proj"] = (h, q, arch.out_bias)
        shapes[arch.fused_qkv] = (q + 2 * kv, h, arch.qkv_bias)
    else:
        for name in names:
            shapes[name] = (q if name == "q_proj" else kv, h, arch.qkv_bias)
        shapes[out_name] = (h, q, arch.out_bias)
    return {**shapes, **_mlp_shapes(arch)}


def _mlp_shapes(arch: Architecture) -> dict[str, tuple[int, int, bool]]:
    h, f, bias = arch.hidden, arch.ffn, arch.mlp_bias
    if arch.mlp is Mlp.relu:
        return {"fc1": (f, h, bias), "fc2": (h, f, bias)}
    if arch.mlp is Mlp.fused_gated:
        return {"gate_up_proj": (2 * f, h, bias), "down_proj": (h, f, bias)}
    if arch.mlp is Mlp.moe:
        return {"gate": (arch.experts, h, False)}
    return {"gate_proj": (f, h, bias), "up_proj": (f, h, bias), "down_proj": (h, f, bias)}


def norm_names(arch: Architecture) -> tuple[str, ...]:
    """Norms of one block in registration order."""
    if arch.sandwich_norms:
        return (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        )
    return ("input_layernorm", "post_attention_layernorm")


def has_norm_bias(arch: Architecture) -> bool:
    """LayerNorm has a bias, RMSNorm has none."""
    return arch.norm is Norm.layer
