"""Builds a `Network` for a training method: which weights are trained, adapted, quantised."""

from __future__ import annotations

from collections.abc import Callable

from planner.architecture.spec import Architecture
from planner.network.adapters import add_adapters
from planner.network.gptq import gptq_parts
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
from planner.network.perceptron import build_perceptron
from planner.network.quantized import quantized_parts
from planner.network.registration import FINAL_NORM_FIRST, registered
from planner.tape.autograd import Parameter
from planner.training_case import Method, TrainingCase
from planner.units import DTYPE_BYTES

Make = Callable[[str, tuple[int, ...]], Parameter]
GPTQ, VALUES = "gptq", "values"


def build_network(case: TrainingCase) -> Network:
    """Lay out every parameter of the case's model.

    Raises:
        CaseError: when a LoRA target names no module of this architecture.
    """
    if case.architecture.widths:
        return build_perceptron(case)
    arch, freezes = case.architecture, case.method is Method.freeze
    full = case.method is Method.full or (case.lora is not None and case.lora.train_base)
    first_trained = arch.layers - case.freeze_last_layers if freezes else arch.layers
    outer = _maker(case, trainable=full)
    network = Network(
        embedding=Module("embed_tokens", outer("embed_tokens", (arch.vocab, arch.hidden))),
        positions=_positions(arch, outer),
        layers=[
            _layer(arch, case, _maker(case, trainable=full or i >= first_trained), i)
            for i in range(arch.layers)
        ],
        embedding_norm=_norm(arch, outer, "embed_norm", arch.hidden) if arch.embedding_norm else None,
        final_norm=_norm(arch, outer, "norm", norm_width(arch)),
        final_norm_first=arch.model_type in FINAL_NORM_FIRST,
        head=_output(case, trainable=full or freezes),
    )
    if case.lora is not None:
        add_adapters(network, arch, case.lora, DTYPE_BYTES[case.dtype])
    return network


def _maker(case: TrainingCase, *, trainable: bool) -> Make:
    """Makes weights as the model is loaded: in fp32 after `prepare_model_for_kbit_training`.

    That leaves a GPTQ model in its type (peft 0.21 `utils/other.py`).
    """
    base = case.quantization
    prepared = base is not None and base.prepare_for_kbit_training and base.kind != GPTQ
    itemsize = DTYPE_BYTES["fp32" if prepared else case.dtype]
    return lambda name, shape: Parameter(name, shape, trainable=trainable, itemsize=itemsize)


def _positions(arch: Architecture, make: Make) -> Module | None:
    if not arch.learned_positions:
        return None
    return Module("embed_positions", make("embed_positions", (arch.learned_positions, arch.hidden)))


def _output(case: TrainingCase, *, trainable: bool) -> Module | None:
    """The output layer; None where it is the embedding's weight."""
    arch, make = case.architecture, _maker(case, trainable=trainable)
    if case.loss == VALUES:  # one number a token (DeepSpeed-Chat `utils/model/reward_model.py: v_head`)
        return Module("v_head", make("v_head", (1, arch.hidden)))
    if arch.tied:
        return None
    weight = make("lm_head", (arch.vocab, arch.hidden))
    if case.quantization is not None and case.quantization.head:
        weight = _packed(case, weight)
    return Module("lm_head", weight, make("lm_head.bias", (arch.vocab,)) if arch.head_bias else None)


def _packed(case: TrainingCase, weight: Parameter) -> Parameter:
    """The same matrix as the quantised base stores it."""
    assert case.quantization is not None
    if case.quantization.kind == GPTQ:
        parts = gptq_parts(weight.shape, case.quantization)
    else:
        parts = quantized_parts(weight.numel, weight.shape[0], case.quantization)
    itemsize = DTYPE_BYTES[case.dtype]
    # bitsandbytes keeps 4 bit in elements of the compute type (`bnb_4bit_quant_storage`), 8 bit in int8
    unit = itemsize if case.quantization.kind != GPTQ and case.quantization.bits == 4 else 1
    return Parameter(weight.name, weight.shape, trainable=False, itemsize=itemsize, parts=parts, unit=unit)


def _norm(arch: Architecture, make: Make, name: str, width: int) -> Module:
    bias = make(f"{name}.bias", (width,)) if has_norm_bias(arch) else None
    return Module(name, make(name, (width,)), bias)


def _layer(arch: Architecture, case: TrainingCase, make: Make, index: int) -> Layer:
    linears: dict[str, Module] = {}
    for name, (out_features, in_features, bias) in linear_shapes(arch, index).items():
        weight = make(name, (out_features, in_features))
        if case.quantization is not None:
            weight = _packed(case, weight)
        linears[name] = Module(name, weight, make(f"{name}.bias", (out_features,)) if bias else None)
    linears |= {name: Module(name, make(name, shape)) for name, shape in stacked_shapes(arch, index).items()}
    norms = {name: _norm(arch, make, name, norm_width(arch)) for name in norm_names(arch)}
    norms |= {name: _norm(arch, make, name, width) for name, width in inner_norms(arch).items()}
    return Layer(linears, norms, registered(arch, linears), index)
