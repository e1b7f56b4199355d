"""Everything that a simulation changes around real code while it runs, and puts back afterwards."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
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


MUON = "deepspeed.runtime.zero.muon"

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


class _Grids:
    """A kernel of Triton: whatever grid it is started on changes values alone."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


class _Signatures:
    """Signatures of functions, one for all that were made of the same code."""

    def __init__(self) -> None:
        self._known: dict[Any, inspect.Signature] = {}

    def __call__(self, function: Any) -> inspect.Signature:
        """As `inspect.signature`."""
        key = function if function.__defaults__ or function.__kwdefaults__ else function.__code__
        if key not in self._known:
            self._known[key] = inspect.signature(function)
        return self._known[key]


@contextmanager
def simulated_gpu(recorder: Recorder, *, rank: int, world_size: int, hopper: bool) -> Iterator[None]:
    """Let torch, transformers and DeepSpeed take the meta device for one GPU among `world_size`."""
    from planner.simulate.accelerator import SimulatedAccelerator, installed
    from planner.simulate.collectives import world_of
    from planner.simulate.cuda_paths import cuda_paths
    from planner.simulate.shortcuts import shortcuts

    ranks = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.dict(os.environ, ranks))
        enter(_muon_uncompiled())
        for name in CHANGED:
            enter(_kept(importlib.import_module(name)))
        enter(installed(SimulatedAccelerator(recorder)))
        enter(world_of(rank, world_size))
        for name, builder in OPS.items():
            enter(mock.patch.object(importlib.import_module(name), builder, _Kernels))
        for patch in chain(_patches(), shortcuts()):
            enter(patch)
        enter(cuda_paths(hopper=hopper))
        enter(recorder)
        yield


@contextmanager
def _muon_uncompiled() -> Iterator[None]:
    """DeepSpeed imports Muon to ask whether an optimizer is one, and compiles it, which takes seconds."""
    before = set(sys.modules)
    with mock.patch.object(torch, "compile", _as_it_is):
        importlib.import_module(f"{MUON}.muon_optimizer")
    try:
        yield
    finally:  # who trains with it in this process gets it compiled
        for name in {name for name in sys.modules if name.startswith(MUON)} - before:
            del sys.modules[name]


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return function or _as_it_is


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
    # read anew at each call of each of the two functions that stage 3 makes for a module
    functions = importlib.import_module("torch.autograd.function")
    yield mock.patch.object(functions, "inspect", SimpleNamespace(signature=_Signatures()))
    # it asks the other ranks whether they agree
    yield mock.patch.object(coordinator, "assert_ints_same_as_other_ranks", lambda *_: None)
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
