"""Adapters as peft 0.18-0.21 makes and runs them: `tuners/lora/layer.py`, `variants.py`, `dora.py`."""

from __future__ import annotations

from planner.architecture.spec import Architecture
from planner.errors import CaseError, did_you_mean
from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Layer, Module, Network, linear_shapes
from planner.tape import ops, products
from planner.tape.autograd import Parameter, Tensor
from planner.training_case import Lora
from planner.units import DTYPE_BYTES

SAVED = ("embed_tokens", "lm_head")


def add_adapters(network: Network, arch: Architecture, lora: Lora, itemsize: int) -> None:
    """Give every target an adapter and train `modules_to_save` in a copy of their own.

    Raises:
        CaseError: when a name fits no module of this architecture.
    """
    names = adapted_names(arch, lora)
    adapter_itemsize = DTYPE_BYTES.get(lora.adapter_dtype, itemsize)
    for layer in network.layers:
        for name in names:
            if name in layer.linears:  # blocks of a mixture may differ
                _adapt(layer, name, lora, adapter_itemsize)
    for name in lora.modules_to_save:
        _save_whole(network, arch, name)


def _adapt(layer: Layer, name: str, lora: Lora, itemsize: int) -> None:
    module = layer.linears[name]
    out_features, in_features = module.weight.shape

    def make(kind: str, shape: tuple[int, ...]) -> Module:
        return Module(f"{name}.{kind}", Parameter(f"{name}.{kind}", shape, trainable=True, itemsize=itemsize))

    module.lora_a = make("lora_A", (lora.r, in_features))
    module.lora_b = make("lora_B", (out_features, lora.r))
    if lora.use_dora:
        module.magnitude = make("lora_magnitude_vector", (out_features,))


def _save_whole(network: Network, arch: Architecture, name: str) -> None:
    if name not in SAVED:
        raise CaseError(f"lora.modules_to_save {name!r} is not supported. {did_you_mean(name, SAVED)}")
    if arch.tied:
        raise CaseError(f"lora.modules_to_save {name!r}: this model ties embedding and output layer")
    module = network.embedding if name == "embed_tokens" else network.output
    old = module.weight
    module.original = old
    module.weight = Parameter(f"{name}.modules_to_save", old.shape, trainable=True, itemsize=old.itemsize)


def adapted_names(arch: Architecture, lora: Lora) -> list[str]:
    """Short names of the modules of one block that get an adapter, as peft matches them (by suffix)."""
    known = list(linear_shapes(arch))
    if lora.target_modules == "all-linear":
        _refuse_stacked_experts(arch)
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


def _refuse_stacked_experts(arch: Architecture) -> None:
    """Peft 0.21 makes all-linear adapt router and stacked experts of most mixtures (`target_parameters`)."""
    if arch.experts is None or arch.model_type == "qwen2_moe":
        return
    plain = (
        "q_proj, k_proj, v_proj, o_proj" if arch.latent is None else "kv_a_proj_with_mqa, kv_b_proj, o_proj"
    )
    raise CaseError(
        f"LoRA target all-linear adapts the stacked experts of a {arch.model_type} model in peft 0.21, which "
        f"is not supported. Name linear layers instead: {plain}"
    )


def adapted(forward: Forward, module: Module, x: Tensor, result: Tensor) -> Tensor:
    """Add the adapter's part to the output of the base layer."""
    assert module.lora_a is not None and module.lora_b is not None
    lora = forward.case.lora
    assert lora is not None
    tape, x = forward.tape, ops.cast(forward.tape, x, module.lora_a.weight.itemsize)
    if module.magnitude is not None:
        return _dora(forward, module, _dropped(forward, x), result)
    low = forward.plain_linear(module.lora_a, _dropped(forward, x))
    update = forward.plain_linear(module.lora_b, low)
    del low
    update = ops.scale(tape, update)
    return ops.add(tape, result, update)


def _dropped(forward: Forward, x: Tensor) -> Tensor:
    """`lora_dropout`, a module also where it drops nothing."""
    lora = forward.case.lora
    assert lora is not None
    return forward.within(x, lambda inner: ops.dropout(forward.tape, inner, lora.dropout))


def _dora(forward: Forward, module: Module, x: Tensor, result: Tensor) -> Tensor:
    """`DoraLinearLayer.forward`: (m - 1) * base + m * lora * scaling; m over the summed weight's norm."""
    tape, lora = forward.tape, forward.case.lora
    assert lora is not None and module.magnitude is not None
    assert module.lora_a is not None and module.lora_b is not None
    unpacked = module.weight.numel * forward.itemsize if module.weight.quantized else 0
    whole = tape.arena.new(unpacked, "unpacked weights")
    _weight_norm(forward, module)
    base = result
    if lora.dropout > 0:  # the base is computed again from the dropped input
        base = _again(forward, module, x, whole) if unpacked else forward.plain_linear(module, x)
    del whole
    low = forward.plain_linear(module.lora_a, x)
    update = forward.plain_linear(module.lora_b, low)
    magnitude = module.magnitude.weight
    scaled_base = ops.elementwise(tape, [base], saves=(base.buffer,), trained=(magnitude,))
    scaled = ops.scale(tape, ops.elementwise(tape, [update], saves=(update.buffer,), trained=(magnitude,)))
    del low, update, base
    both = ops.add(tape, scaled_base, scaled)
    del scaled_base, scaled
    return ops.add(tape, result, both)


def _again(forward: Forward, module: Module, x: Tensor, whole: Buffer) -> Tensor:
    """`F.linear` with a packed weight that has been made whole, which the gradient of x keeps."""
    rows = x.numel // module.weight.shape[1]
    return products.linear(forward.tape, x, module.weight, rows=rows, whole=whole)


def _weight_norm(forward: Forward, module: Module) -> None:
    """The adapter's weight is multiplied out through an identity, added to the base, and its norm taken.

    All of it goes when the function returns; no gradient reaches it.
    """
    assert module.lora_a is not None
    new, itemsize = forward.tape.arena.new, module.lora_a.weight.itemsize
    (rank, inputs), numel = module.lora_a.weight.shape, module.weight.numel
    made: list[Buffer] = [new(inputs * inputs * itemsize, "adapter norms")]
    made.append(new(inputs * rank * itemsize, "adapter norms"))
    made.append(new(numel * itemsize, "adapter norms"))
    made += [new(numel * forward.itemsize, "adapter norms") for _ in range(2)]  # scaled, summed
    del made
