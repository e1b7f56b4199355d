"""Torch's own `fully_shard` around a model on shapes: its collectives move nothing.

Source: torch 2.13 `distributed/fsdp/_fully_shard/`. The model is built in main memory; block by block it
comes to the GPU and is cut (`_fsdp_init.py: _move_states_to_device`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import distributed

from planner.errors import CaseError, NotSimulated
from planner.simulate.recorder import GPU, Recorder
from planner.training_case import TrainingCase

CODE = "torch.distributed.fsdp._fully_shard"
WITH_STREAMS = ("_fsdp_collectives", "_fsdp_init", "_fsdp_param_group", "_fsdp_state")
TRAVEL = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@contextmanager
def fake_ranks(case: TrainingCase, recorder: Recorder, *, rank: int) -> Iterator[None]:
    """Let torch's FSDP2 find its ranks and take the meta device for a GPU, where a case asks for it.

    Raises:
        NotSimulated: where this process has a process group already.
    """
    if case.engine != "fsdp2":
        yield
        return
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        raise NotSimulated("engine fsdp2 is simulated with a process group of its own; this process has one")
    recorder.sharded = DTensor
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=case.world_size)
    try:
        with ExitStack() as stack:
            for patch in _patches(recorder):
                stack.enter_context(patch)
            yield
    finally:
        distributed.destroy_process_group()


def _patches(recorder: Recorder) -> Iterator[Any]:
    from deepspeed.accelerator import get_accelerator

    for name in WITH_STREAMS:
        module = import_module(f"{CODE}.{name}")
        yield mock.patch.object(module, "_get_device_handle", lambda *_: get_accelerator())
    yield mock.patch.object(
        import_module(f"{CODE}._fully_shard"), "_get_device_from_mesh", lambda _: torch.device(GPU)
    )
    group, parameter = import_module(f"{CODE}._fsdp_param_group"), import_module(f"{CODE}._fsdp_param")
    yield mock.patch.object(group.FSDPParamGroup, "_validate_no_meta_params", lambda _: None)
    for module in (group, parameter):
        yield mock.patch.object(module, "alloc_storage", recorder.take_again)
    yield mock.patch.object(parameter, "free_storage", recorder.give_back)
    for name in TRAVEL:
        yield mock.patch.object(distributed, name, lambda *_, **__: None)


def shard(case: TrainingCase, model: Any) -> None:
    """Shard each block and then what is left, as whoever writes such a job does.

    Raises:
        CaseError: for a model without a list of its blocks.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    how = case.fsdp
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[case.dtype] if how.fp32_params else None,
        reduce_dtype=None if how.reduce_dtype is None else DTYPES[how.reduce_dtype],
    )
    keys = {"mesh": init_device_mesh("cpu", (case.world_size,)), "mp_policy": policy}
    layers = case.architecture.layers
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == layers]
    if not lists:
        raise CaseError("engine fsdp2: the model has no list of its blocks")
    for block in lists[0]:
        _bring(block)
        fully_shard(block, reshard_after_forward=how.reshard_after_forward, **keys)
    _bring(model)
    fully_shard(model, **keys)


def _bring(module: Any) -> None:
    """Move what is in main memory to the GPU."""
    from torch.distributed.tensor import DTensor

    for one in module.parameters():
        if not isinstance(one, DTensor):
            one.data = torch.empty_like(one)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty_like(buffer))
