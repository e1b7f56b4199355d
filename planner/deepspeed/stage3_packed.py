"""ZeRO stage 3 over a base that bitsandbytes packed: loaded whole on every rank, sharded by the engine.

Sources: DeepSpeed 0.19.8 `runtime/zero/parameter_offload.py: _convert_to_zero_parameters`; bitsandbytes 0.50
`nn/modules.py: Params4bit, Int8Params, Linear8bitLt`, `autograd/_functions.py: MatMul4Bit`.
"""

from __future__ import annotations

from planner.deepspeed.base import WEIGHTS, ReplicatedWeights
from planner.deepspeed.stage3 import Stage3
from planner.memory.arena import Arena, Buffer
from planner.network.modules import Module, Network
from planner.tape.autograd import Parameter
from planner.training_case import TrainingCase

EIGHT_BITS = 8


class PackedStage3(Stage3):
    """Packed weights are sharded like all frozen parameters; their scales are none and stay whole."""

    def __init__(self, case: TrainingCase, network: Network, arena: Arena) -> None:
        super().__init__(case, network, arena)
        self.loaded = ReplicatedWeights(case, network, arena)
        assert case.quantization is not None
        # `Int8Params.CB`, later `MatmulLtState.CB`, names the whole packed tensor that DeepSpeed lets go
        self.keeps_packed = case.quantization.bits == EIGHT_BITS

    def load(self) -> None:
        """`zero.Init` is left out for a quantised model: each rank has all of it."""
        self.loaded.load()

    def start(self) -> None:
        """The engine casts what is not packed, then shards parameter by parameter, then starts as ever."""
        self.loaded.cast_adapters()
        for parameter in self.network.parameters():
            self.shards[parameter] = self.arena.new(self._shard(parameter) * parameter.held_itemsize, WEIGHTS)
            if not (parameter.quantized and self.keeps_packed):
                self._free(parameter)
        super().start()

    def _free(self, parameter: Parameter) -> None:
        """The whole tensor goes; of a packed weight the scales stay."""
        if not parameter.quantized:
            del self.loaded.weights[parameter]
            return
        parts = self.loaded.weights[parameter]
        del parts[parameter.parts.index(max(parameter.parts))]

    def after_forward(self, module: Module) -> None:
        """`Linear8bitLt` puts the whole tensor it kept in the place of the gathered one, which goes."""
        if self.keeps_packed and module.weight.quantized:
            self.coordinator.replace(module.weight)
        super().after_forward(module)

    def packed_weight(self, weight: Parameter) -> Buffer | None:
        """`MatMul4Bit` keeps a view of the gathered tensor; in 8 bit the state has the whole one anyway."""
        return None if self.keeps_packed else self.coordinator.whole.get(weight)
