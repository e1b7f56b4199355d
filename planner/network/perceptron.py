"""A perceptron for images: linear layers with ReLU between them, and cross-entropy over classes.

Written as `llmsys_exp/workers/models/perceptron.py` writes it. Pixels come as bytes and are widened on the
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from planner.network.forward import WeightHooks, hooked
from planner.network.modules import Module, Network
from planner.tape import ops, products
from planner.tape.autograd import Parameter, Tape, Tensor
from planner.training_case import TrainingCase
from planner.units import DTYPE_BYTES

LABEL_BYTES = 8  # int64
FP32 = 4


class Perceptron(Network):
    """Linear modules in order. Engines ask for the first and the last by the names a decoder gives them."""

    def __init__(self, linears: list[Module]) -> None:
        super().__init__(embedding=linears[0], layers=[], final_norm=linears[-1], head=linears[-1])
        self.linears = linears

    def modules(self) -> Iterator[Module]:
        """In registration order."""
        yield from self.linears


def build_perceptron(case: TrainingCase) -> Perceptron:
    """Lay out the weights and biases of all layers; every one is trained."""
    widths, itemsize = case.architecture.widths, DTYPE_BYTES[case.dtype]

    def weight(name: str, *shape: int) -> Parameter:
        return Parameter(name, shape, trainable=True, itemsize=itemsize)

    sizes = enumerate(pairwise(widths))
    return Perceptron(
        [Module(f"linear_{n}", weight(f"{n}.weight", b, a), weight(f"{n}.bias", b)) for n, (a, b) in sizes]
    )


def input_sizes(case: TrainingCase) -> tuple[int, int]:
    """Bytes of the pixels and of the labels of a micro-batch."""
    return case.micro_batch * case.architecture.widths[0], case.micro_batch * LABEL_BYTES


def perceptron_loss(case: TrainingCase, network: Perceptron, tape: Tape, hooks: WeightHooks) -> Tensor:
    """From pixels to the loss."""
    rows, last = case.micro_batch, network.linears[-1]
    x = tape.tensor(rows * case.architecture.widths[0], DTYPE_BYTES[case.dtype])
    for module in network.linears:
        x = _linear(module, x, tape, hooks, rows)
        if module is not last:
            x = ops.saves_output(tape, x)
    x = ops.saves_output(tape, ops.cast(tape, x, FP32))  # log-softmax
    loss, nbytes = tape.tensor(1, FP32), x.nbytes
    return tape.attach(loss, lambda _: [tape.arena.new(nbytes, ops.ACTIVATION_GRADIENTS)], [x])


def _linear(module: Module, x: Tensor, tape: Tape, hooks: WeightHooks, rows: int) -> Tensor:
    def body(inner: Tensor) -> Tensor:
        whole = hooks.saved_weight(module.weight)
        keeps = hooks.keeps_inputs
        return products.linear(
            tape, inner, module.weight, rows=rows, bias=module.bias, keeps_input=keeps, whole=whole
        )

    return hooked(tape, hooks, module, x, body)
