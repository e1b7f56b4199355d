"""Bytes on disk: the result, a training checkpoint if one is saved, and what is offloaded to NVMe.

Source: DeepSpeed 0.19.8 `runtime/engine.py: _save_checkpoint, _common_checkpoint_state,
_save_zero_checkpoint`, `swap_tensor/optimizer_utils.py`, `swap_tensor/partitioned_param_swapper.py`.
Checked against files that DeepSpeed wrote: tests/integration/test_checkpoint_bytes.py.
"""

from __future__ import annotations

from planner.host import SWAPPED_FROM, result_bytes, state_bytes, sub_groups
from planner.network.modules import Weights
from planner.optimizers import FP32, optimizer
from planner.tables import CPU
from planner.training_case import Method, TrainingCase
from planner.units import DTYPE_BYTES, ceil_div

WEIGHTS = "training checkpoint: weights"
OPTIMIZER = "training checkpoint: optimizer"


def disk_bytes(case: TrainingCase, network: Weights) -> dict[str, int]:
    """Bytes on disk over all nodes, by use.

    A universal checkpoint (`ds_to_universal.py`) holds what the optimizer's part holds once more.
    """
    parameters = network.parameters()
    uses = {
        "result": result_bytes(case, network),
        WEIGHTS: _checkpoint_weights(case, network),
        OPTIMIZER: _checkpoint_optimizer(case, network),
    }
    if case.method in (Method.lora, Method.qlora):
        base = [p for p in parameters if not p.trainable]
        uses["merged model"] = 2 * sum(p.numel for p in base)
    if case.offload_optimizer == "nvme":
        groups = sub_groups(case, [p for p in parameters if p.trainable])
        swapped = [size for size in groups if FP32 * size >= SWAPPED_FROM]
        # master weights, gradients and state, a file each
        uses["offloaded optimizer"] = case.world_size * sum(
            2 * FP32 * size + state_bytes(case, size) for size in swapped
        )
    if case.offload_param == "nvme":
        itemsize = DTYPE_BYTES[case.dtype]
        parts = [itemsize * ceil_div(p.numel, case.world_size) for p in parameters]
        uses["offloaded weights"] = case.world_size * sum(part for part in parts if part >= SWAPPED_FROM)
    return {use: size for use, size in uses.items() if size}


def _checkpoint_weights(case: TrainingCase, network: Weights) -> int:
    """Module states: all weights below stage 3, only frozen ones at stage 3.

    At stage 2 a copy of the frozen ones in main memory is written beside those on the GPU
    (`_get_param_fragment_func`); on the CPU both are the same storage, which is written once.
    """
    parameters = network.parameters()
    frozen = sum(p.stored_bytes for p in parameters if not p.trainable)
    if case.zero_stage == 3:
        return frozen
    once = sum(p.stored_bytes for p in parameters)
    return once + frozen if case.zero_stage == 2 and case.device != CPU else once


def _checkpoint_optimizer(case: TrainingCase, network: Weights) -> int:
    """Master weights and state of everything trained; the state alone where there is no master copy."""
    trained = [p for p in network.parameters() if p.trainable]
    if case.engine != "deepspeed":
        kept = optimizer(case.optimizer)
        return sum(sum(kept.state_parts(p.shape, p.itemsize)) for p in trained)
    master = FP32 if case.zero_stage or case.dtype != "fp32" else 0
    return sum(master * p.numel + state_bytes(case, p.numel) for p in trained)
