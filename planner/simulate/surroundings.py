"""Everything that a simulation changes around real code while it runs, and puts back afterwards."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from planner.simulate.recorder import Recorder

OPS = {
    "deepspeed.ops.adam.fused_adam": "FusedAdamBuilder",
    "deepspeed.ops.adam.cpu_adam": "CPUAdamBuilder",
    "deepspeed.ops.lion.fused_lion": "FusedLionBuilder",
    "deepspeed.ops.lion.cpu_lion": "CPULionBuilder",
}
"""DeepSpeed's modules whose compiled kernels change tensors in place and allocate nothing."""


CHANGED = (
    "deepspeed.utils.groups",
    "deepspeed.comm.comm",
    "deepspeed.runtime.zero.partition_parameters",
    "torch.nn.functional",
)
"""Modules whose own names DeepSpeed rebinds for good: process groups, and the linear function of stage 3."""


class _Kernels:
    """A compiled extension: whatever is called changes values alone."""

    def load(self) -> Any:
        """Return it."""
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


@contextmanager
def simulated_gpu(recorder: Recorder, *, rank: int, world_size: int) -> Iterator[None]:
    """Let torch, transformers and DeepSpeed take the meta device for one GPU among `world_size`."""
    from planner.simulate.accelerator import SimulatedAccelerator, installed
    from planner.simulate.collectives import world_of
    from planner.simulate.cuda_paths import cuda_paths

    ranks = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.dict(os.environ, ranks))
        for name in CHANGED:
            enter(_kept(importlib.import_module(name)))
        enter(installed(SimulatedAccelerator(recorder)))
        enter(world_of(rank, world_size))
        for name, builder in OPS.items():
            enter(mock.patch.object(importlib.import_module(name), builder, _Kernels))
        for patch in _patches():
            enter(patch)
        enter(cuda_paths())
        enter(recorder)
        yield


@contextmanager
def _kept(module: Any) -> Iterator[None]:
    """Give a module the values back that it has now."""
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)


def _patches() -> Iterator[Any]:
    coordinator = importlib.import_module("deepspeed.runtime.zero.partitioned_param_coordinator")
    linear = importlib.import_module("deepspeed.runtime.zero.linear")
    # ranges for a profiler, around a quarter of a million calls
    nvtx = importlib.import_module("deepspeed.utils.nvtx")
    yield mock.patch.object(nvtx, "enable_nvtx", False)
    # it asks the other ranks whether they agree
    yield mock.patch.object(coordinator, "assert_ints_same_as_other_ranks", lambda *_: None)
    # autocast, which is off, knows no meta device
    yield mock.patch.object(linear, "get_accelerator", lambda: SimpleNamespace(device_name=lambda: "cpu"))
    # the simulated streams are no streams to torch
    yield mock.patch.object(torch.Tensor, "record_stream", lambda *_: None)
    yield mock.patch.object(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)
