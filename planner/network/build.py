"""Builds a `Network` for a training method: which weights are trained, adapted, quantised."""

from __future__ import annotations

from collections.abc import Callable

from planner.architecture.spec import Architecture, Mlp
from planner.errors import CaseError, did_you_mean
from planner.network.modules import Layer, Module, Network, has_norm_bias, linear_shapes, norm_names
from planner.network.quantized import quantized_bytes
from planner.tape.autograd import Parameter
from planner.training_case import Lora, Method, TrainingCase
from planner.units import DTYPE_BYTES

Make = Callable[[str, tuple[int, ...]], Parameter]


def build_network(case: TrainingCase) -> Network:
    """Lay out every parameter of the case's model.

    Raises:
        CaseError: when a LoRA target names no module of this architecture.
    """
    arch = case.architecture
    itemsize = DTYPE_BYTES[case.dtype]
    first_trained = arch.layers - case.freeze_last_layers if case.method is Method.freeze else 0
    full = case.method is Method.full

    prepared = case.quantization is not None and case.quantization.prepare_for_kbit_training
    stored_itemsize = DTYPE_BYTES["fp32"] if prepared else itemsize  # until DeepSpeed casts it back

    def maker(trainable: bool) -> Make:
        return lambda name, shape: Parameter(name, shape, trainable=trainable, itemsize=stored_itemsize)

    outer = maker(full)
    head_trained = full or (case.method is Method.freeze and not arch.tied)
    layers = [
        _layer(arch, case, maker(full or (case.method is Method.freeze and i >= first_trained)))
        for i in range(arch.layers)
    ]
    network = Network(
        embedding=Module("embed_tokens", outer("embed_tokens", (arch.vocab, arch.hidden))),
        positions=_positions(arch, outer),
        layers=layers,
        final_norm=_norm(arch, outer, "norm", arch.hidden),
        head=None if arch.tied else _head(arch, maker(head_trained)),
    )
    if case.lora is not None:
        _add_adapters(network, arch, case.lora, DTYPE_BYTES[case.dtype])
    return network


def _positions(arch: Architecture, make: Make) -> Module | None:
    if not arch.learned_positions:
        return None
    return Module("embed_positions", make("embed_positions", (arch.learned_positions, arch.hidden)))


def _head(arch: Architecture, make: Make) -> Module:
    return Module("lm_head", make("lm_head", (arch.vocab, arch.hidden)))


def _norm(arch: Architecture, make: Make, name: str, width: int) -> Module:
    bias = make(f"{name}.bias", (width,)) if has_norm_bias(arch) else None
    return Module(name, make(name, (width,)), bias)


def _layer(arch: Architecture, case: TrainingCase, make: Make) -> Layer:
    linears: dict[str, Module] = {}
    for name, (out_features, in_features, bias) in linear_shapes(arch).items():
        weight = make(name, (out_features, in_features))
        if case.quantization is not None:
            stored = quantized_bytes(weight.numel, out_features, case.quantization)
            itemsize = DTYPE_BYTES[case.dtype]
            weight = Parameter(name, weight.shape, trainable=False, itemsize=itemsize, stored_bytes=stored)
        linears[name] = Module(name, weight, make(f"{name}.bias", (out_features,)) if bias else None)
    if arch.mlp is Mlp.moe:
        linears |= _experts(arch, make)
    norms = {name: _norm(arch, make, name, arch.hidden) for name in norm_names(arch)}
    if arch.qk_norm:
        norms |= {name: _norm(arch, make, name, arch.head_dim) for name in ("q_norm", "k_norm")}
    return Layer(linears, norms)


def _experts(arch: Architecture, make: Make) -> dict[str, Module]:
    """Transformers 5 keeps the experts of a block as two stacked tensors."""
    e, h, f = arch.experts, arch.hidden, arch.ffn
    shapes = {"experts.gate_up_proj": (e, 2 * f, h), "experts.down_proj": (e, h, f)}
    return {name: Module(name, make(name, shape)) for name, shape in shapes.items()}


def _add_adapters(network: Network, arch: Architecture, lora: Lora, itemsize: int) -> None:
    names = adapted_names(arch, lora)
    adapter_itemsize = DTYPE_BYTES.get(lora.adapter_dtype, itemsize)
    for layer in network.layers:
        for name in names:
            module = layer.linears[name]
            out_features, in_features = module.weight.shape
            shapes = {"lora_A": (lora.r, in_features), "lora_B": (out_features, lora.r)}
            a, b = (
                Module(f"{name}.{k}", Parameter(f"{name}.{k}", s, trainable=True, itemsize=adapter_itemsize))
                for k, s in shapes.items()
            )
            module.lora_a, module.lora_b = a, b


def adapted_names(arch: Architecture, lora: Lora) -> list[str]:
    """Short names of the modules of one block that get an adapter, as peft matches them (by suffix)."""
    known = [name for name in linear_shapes(arch) if arch.mlp is not Mlp.moe or name != "gate"]
    if lora.target_modules == "all-linear":
        return known
    wanted = [lora.target_modules] if isinstance(lora.target_modules, str) else list(lora.target_modules)
    matched = [n for n in known if any(n == w or n.endswith(f".{w}") for w in wanted)]
    for target in wanted:
        if not any(n == target or n.endswith(f".{target}") for n in known):
            raise CaseError(
                f"LoRA target {target!r} names no linear layer of a {arch.model_type} block. "
                f"{did_you_mean(target, known)}"
            )
    return matched
