"""Parameter counts of a case, from one and two blocks of its network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from planner.network.build import build_network
from planner.network.modules import Network
from planner.network.perceptron import Perceptron
from planner.training_case import Method, TrainingCase
from planner.units import DTYPE_BYTES


@dataclass(frozen=True)
class Counts:
    """Elements, and bytes of what stays as it is stored. `multiplied` counts weights of matrix products.

    `held_bytes` are those that an engine knows as parameters, `packed_bytes` the quantised ones among them,
    `loaded_bytes` everything before DeepSpeed casts it.
    """

    total: int
    trained: int
    stored_bytes: int
    held_bytes: int
    packed_bytes: int
    loaded_bytes: int
    largest_trained: int
    largest: int
    head_trained: int
    multiplied: int
    multiplied_trained: int
    head: int
    modules: int


def counts_of(case: TrainingCase) -> Counts:
    """Counts of the whole model."""
    plain = TrainingCase(case.architecture, case.method)
    kept = ("lora", "quantization", "freeze_last_layers", "dtype", "engine")
    return _counts(replace(plain, **{name: getattr(case, name) for name in kept}))


@lru_cache(maxsize=256)
def _counts(case: TrainingCase) -> Counts:
    architecture, layers, method = case.architecture, case.architecture.layers, case.method
    if architecture.widths:
        return _add(case, build_network(case))
    trained_layers = case.freeze_last_layers if method is Method.freeze else layers
    if architecture.experts is not None and architecture.experts.dense_layers:
        return _add(case, build_network(case))
    one, two = (_add(case, _network(case, n, trained=n)) for n in (1, 2))
    frozen = _add(case, _network(case, 2, trained=1)) if method is Method.freeze else two

    def extend(name: str) -> int:
        first, second, partly = (getattr(c, name) for c in (one, two, frozen))
        return second + (second - first) * (trained_layers - 2) + (partly - first) * (layers - trained_layers)

    summed = (
        "total", "trained", "stored_bytes", "held_bytes", "packed_bytes", "loaded_bytes",
        "multiplied", "multiplied_trained", "modules",
    )  # fmt: skip
    largest = {name: getattr(two, name) for name in ("largest_trained", "largest", "head_trained", "head")}
    return Counts(**{name: extend(name) for name in summed}, **largest)


def _network(case: TrainingCase, layers: int, *, trained: int) -> Network:
    architecture = replace(case.architecture, layers=layers)
    freeze = min(trained, layers) if case.method is Method.freeze else 0
    return build_network(replace(case, architecture=architecture, freeze_last_layers=freeze))


def _add(case: TrainingCase, network: Network) -> Counts:
    parameters = network.parameters()
    trained = [p.numel for p in parameters if p.trainable]
    itemsize = DTYPE_BYTES[case.dtype]
    wide = case.engine != "deepspeed"  # DeepSpeed casts what is not quantised back to the compute type
    stored = sum(p.stored_bytes if p.quantized or wide else p.numel * itemsize for p in parameters)
    packed = sum(p.held_numel * p.held_itemsize for p in parameters if p.quantized)
    if isinstance(network, Perceptron):
        products = network.linears[:-1]
    else:
        products = [m for layer in network.layers for m in layer.linears.values()]
    weights = [p for m in products for p in m.all() if len(p.shape) > 1]
    head = network.output.weight
    return Counts(
        total=sum(p.numel for p in parameters),
        trained=sum(trained),
        stored_bytes=stored,
        held_bytes=packed + sum(p.numel * itemsize for p in parameters if not p.quantized),
        packed_bytes=packed,
        loaded_bytes=sum(p.stored_bytes for p in parameters),
        largest_trained=max(trained, default=0),
        largest=max(p.numel for p in parameters),
        head_trained=head.numel if head.trainable else 0,
        multiplied=sum(_active(case, p.numel, p.shape) for p in weights),
        multiplied_trained=sum(_active(case, p.numel, p.shape) for p in weights if p.trainable),
        head=head.numel,
        modules=sum(1 for m in network.modules() for _ in m.all()),
    )


def _active(case: TrainingCase, numel: int, shape: tuple[int, ...]) -> int:
    """Of stacked experts only those that a token passes through do arithmetic."""
    experts = case.architecture.experts
    if experts is None or len(shape) < 3:
        return numel
    return numel * experts.per_token // experts.count
