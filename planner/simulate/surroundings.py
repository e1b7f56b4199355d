"""Everything that a simulation changes around real code while it runs, and puts back afterwards."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
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
    "deepspeed.runtime.activation_checkpointing.checkpointing",
)
"""Modules whose own names DeepSpeed rebinds for good: process groups, the linear function of stage 3, and how
activations are checkpointed."""


class _Kernels:
    """A compiled extension: whatever is called changes values alone."""

    def load(self) -> Any:
        """Return it."""
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Parameters:
    """Parameters of a module, which stage 3 asks for hundreds of times; those it owns do not change."""

    def __init__(self) -> None:
        self._own: dict[tuple[Any, bool], list[Any]] = {}

    def __call__(self, module: Any, recurse: bool = False) -> Iterator[Any]:
        """As `partitioned_param_coordinator.py: iter_params`."""
        own = self._own.get((module, recurse))
        if own is None:
            own = self._own[module, recurse] = [one for _, one in module.named_parameters(recurse=recurse)]
        return chain(own, (one for _, one in module.ds_external_parameters()))


class _Grids:
    """A kernel of Triton: whatever grid it is started on changes values alone."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


@contextmanager
def simulated_gpu(recorder: Recorder, *, rank: int, world_size: int, hopper: bool) -> Iterator[None]:
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
        enter(cuda_paths(hopper=hopper))
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
    offload, walk = importlib.import_module("deepspeed.runtime.zero.parameter_offload"), _Parameters()
    for module in (coordinator, offload):
        yield mock.patch.object(module, "iter_params", walk)
    # autocast, which is off, knows no meta device
    yield mock.patch.object(linear, "get_accelerator", lambda: SimpleNamespace(device_name=lambda: "cpu"))
    # the loss of `loss: chunked` as on a GPU, where Triton's kernels write into tensors that are there
    chunked = importlib.import_module("deepspeed.runtime.chunked_cross_entropy")
    yield mock.patch.object(chunked, "_resolve_backend", lambda *_: "triton")
    for name in ("_log_sum_exp_forward_kernel", "_cross_entropy_backward_kernel"):
        yield mock.patch.object(chunked, name, _Grids(), create=True)
    # fused kernels take tensors of CUDA devices
    optimizers = importlib.import_module("torch.optim.optimizer")
    known = optimizers._get_fused_kernels_supported_devices()
    yield mock.patch.object(optimizers, "_get_fused_kernels_supported_devices", lambda: [*known, "meta"])
    # the simulated streams are no streams to torch
    yield mock.patch.object(torch.Tensor, "record_stream", lambda *_: None)
    yield mock.patch.object(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)
