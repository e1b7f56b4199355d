"""What every emulated DeepSpeed optimizer wrapper has in common.

Source of all of it: DeepSpeed 0.19.8, `deepspeed/runtime`.
"""

from __future__ import annotations

from typing import Protocol

from planner.memory.arena import Arena, Buffer
from planner.network.forward import IdleHooks, WeightHooks
from planner.network.modules import Network
from planner.optimizers import Stepper
from planner.tape.autograd import Parameter
from planner.training_case import TrainingCase
from planner.units import DTYPE_BYTES

FP32 = 4
MASTER = "fp32 master weights"
WEIGHTS = "weights"
GRADIENTS = "gradients"
BUCKETS = "communication buckets"
STEP = "step temporaries"
NORM_BYTES = 8  # zero/utils.py: get_norm_dtype is fp64; one gradient at a time


class Engine(WeightHooks, Protocol):
    """The life of a training engine, in the order of the calls."""

    def load(self) -> None:
        """Put the weights where the model is built."""
        ...

    def start(self) -> None:
        """`deepspeed.initialize`."""
        ...

    def begin_micro_batch(self) -> None:
        """The forward pass starts."""
        ...

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """Autograd has finished one parameter's gradient."""
        ...

    def end_backward(self, *, boundary: bool) -> None:
        """Backward is over; `boundary` at the last micro-batch of a step."""
        ...

    def step(self) -> None:
        """`engine.step()` at a boundary."""
        ...


class ReplicatedWeights(IdleHooks):
    """Stages 0 to 2: every rank holds all weights, so nothing happens around modules."""

    def __init__(self, case: TrainingCase, network: Network, arena: Arena) -> None:
        self.case, self.network, self.arena = case, network, arena
        self.itemsize = DTYPE_BYTES[case.dtype]
        self.trained = [p for p in network.parameters() if p.trainable]
        self.trained_numel = sum(p.numel for p in self.trained)
        self.weights: dict[Parameter, list[Buffer]] = {}
        self.stepper = Stepper(arena, case.optimizer)

    def load(self) -> None:
        """Build the model on the GPU in its dtype; bitsandbytes packs on the way there, GPTQ's is packed."""
        packs = self.case.quantization is not None and self.case.quantization.kind == "bnb"
        for parameter in self.network.parameters():
            narrow = parameter.numel * self.itemsize
            whole = self.arena.new(narrow, WEIGHTS) if parameter.quantized and packs else None
            self.weights[parameter] = [self.arena.new(n, WEIGHTS) for n in parameter.parts or (narrow,)]
            del whole
        if self.network.head is None and self.case.quantization is None:
            scratch(self.arena, self.network.embedding.weight.stored_bytes, WEIGHTS)  # until it is tied
        for parameter in self.network.parameters():
            if not parameter.quantized and parameter.itemsize != self.itemsize:
                self._store(parameter)  # fp32 adapters, `prepare_model_for_kbit_training`

    def _store(self, parameter: Parameter) -> None:
        """A new copy in the parameter's type; the old one goes."""
        self.weights[parameter] = [self.arena.new(parameter.stored_bytes, WEIGHTS)]

    def begin_micro_batch(self) -> None:
        """Nothing to do."""

    def cast_adapters(self) -> None:
        """`_cast_module_mixed_precision` brings every floating parameter to the compute type."""
        for parameter in self.network.parameters():
            if not parameter.quantized and parameter.itemsize != self.itemsize:
                parameter.itemsize = self.itemsize
                self._store(parameter)


def replaced_head(network: Network) -> Parameter:
    """The output layer as it is built before transformers ties it to the embedding."""
    embedding = network.embedding.weight
    return Parameter("lm_head", embedding.shape, trainable=False, itemsize=embedding.itemsize)


def scratch(arena: Arena, nbytes: int, what: str = STEP) -> None:
    """Allocate and free at once: a temporary that leaves only its peak."""
    arena.new(nbytes, what)
