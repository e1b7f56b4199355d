"""The planner's tables: GPUs and model shapes, read once from `planner/data`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import CaseError, did_you_mean
from planner.units import GIB, MIB

DATA = Path(__file__).parent / "data"
HOPPER = (9, 0)
CPU = "cpu"
MOST_THREADS = 2048
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}


@dataclass(frozen=True)
class Gpu:
    """One row of `data/gpus.yaml`. Bandwidths in 1e9 bytes a second, rates in dense TFLOP/s."""

    name: str
    title: str
    vendor: str
    memory_gib: float
    usable_gib: float
    context_gib: float
    compute_capability: str
    multiprocessors: int
    bf16: bool
    fp16_tflops: float
    bf16_tflops: float | None
    memory_bandwidth_gb_s: float
    link: str
    link_gb_s: float
    pcie_gb_s: float
    source: str
    note: str = ""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as numbers."""
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)

    @property
    def threads_per_multiprocessor(self) -> int:
        """How many threads one multiprocessor holds (CUDA programming guide, "Technical specifications")."""
        return _THREADS.get(self.capability, MOST_THREADS)

    @property
    def usable_bytes(self) -> int:
        """What one process can allocate beside its CUDA context."""
        return int(self.usable_gib * GIB)


@cache
def read_table(name: str) -> dict[str, Any]:
    """A table of `planner/data`, read once."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((DATA / name).read_text(encoding="utf-8"), Loader=loader)  # a safe loader either way


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU of the table, by name."""
    return {name: Gpu(name=name, **row) for name, row in read_table("gpus.yaml").items()}


def gpu_names() -> list[str]:
    """Names that `hardware.gpu` takes."""
    return [CPU, *gpus()]


def gpu(name: str) -> Gpu:
    """Look a GPU up.

    Raises:
        CaseError: with the closest name.
    """
    if name not in gpus():
        raise CaseError(f"GPU {name!r} is not in the table. {did_you_mean(name, gpu_names())}")
    return gpus()[name]


def card_of(device: str) -> Gpu | None:
    """Return the GPU of a case; None for a CPU; raises as `gpu` does."""
    return None if device == CPU else gpu(device)


def model_names() -> list[str]:
    """Names of the model shapes that ship with the planner."""
    return list(read_table("models/index.yaml"))


@cache
def model_config(name: str) -> dict[str, Any]:
    """The Hugging Face configuration of a shipped model shape.

    Raises:
        CaseError: with the closest name.
    """
    index = read_table("models/index.yaml")
    if name not in index:
        raise CaseError(f"model {name!r} is not in the table. {did_you_mean(name, index)}")
    return json.loads((DATA / "models" / index[name]["file"]).read_text(encoding="utf-8"))


def workspace_bytes(device: str) -> int:
    """CuBLAS workspace of one thread.

    Source: torch 2.11 `aten/src/ATen/cuda/CublasHandlePool.cpp: getChosenWorkspaceSize`: 32 MiB on
    compute capability 9.0, else `:4096:2:16:8`. Nothing on the CPU.
    """
    if device == CPU:
        return 0
    if gpu(device).capability == HOPPER:
        return 32 * MIB
    return (2 * 4096 + 8 * 16) * 1024


def constant_bytes(name: str) -> int:
    """A measured constant of `data/constants.yaml`, in bytes."""
    return int(read_table("constants.yaml")[name]["value"] * GIB)


def constant(name: str) -> float:
    """A constant of `data/constants.yaml` as it stands there."""
    return float(read_table("constants.yaml")[name]["value"])
