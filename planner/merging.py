"""What merging an adapter into its base needs: memory of the device and of the host, and disk.

Sources: peft 0.18-0.21 `tuners/lora/layer.py: Linear.merge, get_delta_weight` (a copy of the weight for
`safe_merge`, its update, and the update in fp32 where 16-bit matrices are multiplied on a CPU);
`llmsys_exp/workers/export/merge.py` (one more copy, to tell the change) and `workers/shards.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.tables import CPU, constant_bytes
from planner.units import DTYPE_BYTES

STORED_BYTES = 2
COPIES_OF_LARGEST = 3
"""While one matrix is merged: as it was, as it becomes, and its update."""
FILES = 2 * 1024 * 1024
"""Configuration, tokenizer and index, generously."""


@dataclass(frozen=True)
class Merge:
    """A merge: what is loaded, what is written."""

    parameters: int
    largest: int
    """Elements of the largest matrix."""
    adapter_bytes: int
    dtype: str
    device: str
    shard_bytes: int


def device_bytes(merge: Merge) -> dict[str, int]:
    """Bytes on the device that merges, by use; on the CPU all of it is in main memory.

    >>> sum(device_bytes(Merge(1000, 100, 80, "bf16", "cuda", 10**9)).values())
    2680
    """
    itemsize = DTYPE_BYTES[merge.dtype]
    return {
        "base model": merge.parameters * itemsize,
        "adapter": merge.adapter_bytes,
        "matrix being merged": COPIES_OF_LARGEST * merge.largest * itemsize,
    }


def host_bytes(merge: Merge) -> dict[str, int]:
    """Bytes of main memory, by use.

    On a GPU the files are mapped while they are read: page cache, given back when memory is short.
    """
    shard = min(merge.shard_bytes, STORED_BYTES * merge.parameters)
    uses = {"file being written": shard}
    if merge.device == CPU:
        return {"process": constant_bytes("cpu_process_rss_gib"), **device_bytes(merge), **uses}
    return {"process": constant_bytes("process_rss_gib"), **uses}


def disk_bytes(parameters: int) -> int:
    """Bytes of the written folder; one that lies there stays until the new one is whole."""
    return STORED_BYTES * parameters + FILES
