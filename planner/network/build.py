"""Builds a `Network` for a training method: which weights are trained, adapted, quantised."""

from __future__ import annotations

from collections.abc import Callable

from planner.architecture.spec import Architecture
from planner.network.adapters import add_adapters
from planner.network.modules import (
    Layer,
    Module,
    Network,
    has_norm_bias,
    inner_norms,
    linear_shapes,
    norm_names,
    norm_width,
    stacked_shapes,
)
from planner.network.quantized import quantized_parts
from planner.tape.autograd import Parameter
from planner.training_case import Method, TrainingCase
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
    full = case.method is Method.full or (case.lora is not None and case.lora.train_base)

    prepared = case.quantization is not None and case.quantization.prepare_for_kbit_training
    stored_itemsize = DTYPE_BYTES["fp32"] if prepared else itemsize  # until DeepSpeed casts it back

    def maker(trainable: bool) -> Make:
        return lambda name, shape: Parameter(name, shape, trainable=trainable, itemsize=stored_itemsize)

    outer = maker(full)
    head_trained = full or (case.method is Method.freeze and not arch.tied)
    layers = [
        _layer(arch, case, maker(full or (case.method is Method.freeze and i >= first_trained)), i)
        for i in range(arch.layers)
    ]
    network = Network(
        embedding=Module("embed_tokens", outer("embed_tokens", (arch.vocab, arch.hidden))),
        positions=_positions(arch, outer),
        layers=layers,
        embedding_norm=_norm(arch, outer, "embed_norm", arch.hidden) if arch.embedding_norm else None,
        final_norm=_norm(arch, outer, "norm", norm_width(arch)),
        head=None if arch.tied else _head(arch, maker(head_trained)),
    )
    if case.lora is not None:
        add_adapters(network, arch, case.lora, DTYPE_BYTES[case.dtype])
    return network


def _positions(arch: Architecture, make: Make) -> Module | None:
    if not arch.learned_positions:
        return None
    return Module("embed_positions", make("embed_positions", (arch.learned_positions, arch.hidden)))


def _head(arch: Architecture, make: Make) -> Module:
    bias = make("lm_head.bias", (arch.vocab,)) if arch.head_bias else None
    return Module("lm_head", make("lm_head", (arch.vocab, arch.hidden)), bias)


def _norm(arch: Architecture, make: Make, name: str, width: int) -> Module:
    bias = make(f"{name}.bias", (width,)) if has_norm_bias(arch) else None
    return Module(name, make(name, (width,)), bias)


def _layer(arch: Architecture, case: TrainingCase, make: Make, index: int) -> Layer:
    linears: dict[str, Module] = {}
    for name, (out_features, in_features, bias) in linear_shapes(arch, index).items():
        weight = make(name, (out_features, in_features))
        if case.quantization is not None:
            parts = quantized_parts(weight.numel, out_features, case.quantization)
            itemsize = DTYPE_BYTES[case.dtype]
            weight = Parameter(name, weight.shape, trainable=False, itemsize=itemsize, parts=parts)
        linears[name] = Module(name, weight, make(f"{name}.bias", (out_features,)) if bias else None)
    linears |= {name: Module(name, make(name, shape)) for name, shape in stacked_shapes(arch, index).items()}
    norms = {name: _norm(arch, make, name, norm_width(arch)) for name in norm_names(arch)}
    norms |= {name: _norm(arch, make, name, width) for name, width in inner_norms(arch).items()}
    return Layer(linears, norms, index)
