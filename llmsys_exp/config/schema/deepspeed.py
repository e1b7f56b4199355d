"""ZeRO and offload, in DeepSpeed's own names."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP007, UP045

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from llmsys_exp.config.schema.kinds import AUTO, Device


@dataclass
class ZeroConfig:
    """Names and units are DeepSpeed's; bucket sizes and limits count elements, not bytes."""

    stage: Union[int, str] = AUTO
    """0 replicate, 1 shard optimizer state, 2 and gradients, 3 and weights."""
    overlap_comm: bool = False
    """Reduce gradients while backward goes on; doubles the reduce buffer at stages 1 and 2."""
    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they appear."""
    reduce_bucket_size: Union[int, str] = AUTO
    """Elements reduced at once."""
    allgather_bucket_size: int = 500_000_000
    """Elements gathered at once (stages 1 and 2)."""
    stage3_prefetch_bucket_size: int = 50_000_000
    """Elements fetched ahead of use (stage 3)."""
    stage3_param_persistence_threshold: int = 100_000
    """Parameters smaller than this stay gathered (stage 3)."""
    stage3_max_live_parameters: int = 1_000_000_000
    """No more prefetch beyond this many gathered elements (stage 3)."""
    stage3_max_reuse_distance: int = 1_000_000_000
    """Keep a parameter gathered when it is used again within this many elements (stage 3)."""
    sub_group_size: int = 1_000_000_000
    """Elements stepped at once by the optimizer (stage 3)."""
    stage3_gather_16bit_weights_on_model_save: bool = True
    """Collect whole weights from the shards when saving (stage 3)."""


@dataclass
class OffloadConfig:
    """What is kept off the GPU."""

    optimizer: Device = Device.auto
    """Where optimizer state lives: none (GPU), cpu (stages 1-3), nvme (stage 3)."""
    param: Device = Device.auto
    """Where weight shards rest between uses: none, cpu or nvme (stage 3 only)."""
    pin_memory: bool = True
    """Page-locked host buffers: faster copies, memory that cannot be swapped."""
    nvme_path: Optional[str] = None
    """Folder on a fast local disk, for nvme."""
