"""Main memory of one node and bytes on disk.

Source: DeepSpeed 0.19.8 `zero/stage_1_and_2.py` and `stage3.py` (what an offloaded optimizer pins),
`runtime/zero/offload_config.py` (staging buffers).
"""

from __future__ import annotations

from planner.network.modules import Network
from planner.tables import CPU, constant_bytes
from planner.training_case import Method, TrainingCase
from planner.units import DTYPE_BYTES, ceil_div

FP32 = 4
ADAM_STATE = 2 * FP32
PARAM_STAGING = 5 * 100_000_000  # buffer_count x buffer_size elements of offload_param


def host_bytes(case: TrainingCase, network: Network, *, ranks_per_node: int) -> dict[str, int]:
    """Bytes of main memory on one node, by use.

    Pinned buffers can take up to twice their size, because PyTorch's pinned allocator rounds to powers of
    two; the figures here are the sizes themselves.
    """
    trained = sum(p.numel for p in network.parameters() if p.trainable)
    everything = sum(p.numel for p in network.parameters())
    itemsize = DTYPE_BYTES[case.dtype]
    shard = ceil_div(trained, case.world_size)
    uses: dict[str, int] = {}
    base = "cpu_process_rss_gib" if case.device == CPU else "process_rss_gib"
    uses["processes"] = constant_bytes(base) * ranks_per_node
    if case.offload_optimizer == "cpu":
        copies = 2 * itemsize if case.zero_stage < 3 else itemsize
        uses["offloaded optimizer (pinned)"] = (2 * FP32 + ADAM_STATE + copies) * shard * ranks_per_node
    if case.offload_optimizer == "nvme":
        uses["optimizer staging (pinned)"] = 4 * FP32 * min(shard, case.zero.sub_group_size) * ranks_per_node
    if case.offload_param == "cpu":
        uses["offloaded weights (pinned)"] = itemsize * ceil_div(everything, case.world_size) * ranks_per_node
    if case.offload_param == "nvme":
        uses["weight staging (pinned)"] = PARAM_STAGING * itemsize * ranks_per_node
    uses["loading the checkpoint"] = itemsize * everything * ranks_per_node
    return uses


def disk_bytes(case: TrainingCase, network: Network) -> dict[str, int]:
    """Bytes on disk: one checkpoint, the result, and what is offloaded to NVMe."""
    trained = sum(p.numel for p in network.parameters() if p.trainable)
    everything = sum(p.numel for p in network.parameters())
    itemsize = DTYPE_BYTES[case.dtype]
    adapters = case.method in (Method.lora, Method.qlora)
    uses = {
        "optimizer checkpoint": (FP32 + ADAM_STATE) * trained,
        "result": itemsize * (trained if adapters else everything),
    }
    if case.offload_optimizer == "nvme":
        uses["offloaded optimizer"] = (FP32 + ADAM_STATE) * trained
    if case.offload_param == "nvme":
        uses["offloaded weights"] = itemsize * everything
    return uses
