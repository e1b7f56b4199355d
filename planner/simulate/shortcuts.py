"""DeepSpeed's bookkeeping at stage 3 in fewer calls, which ask for the same memory in the same order.

The originals look at every rank, or at every module to come, for each parameter and bucket; of all that only
what this rank keeps is memory. Where DeepSpeed's code is not what was read for this (0.19.8), it runs itself.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, reduce
from importlib import import_module
from itertools import chain
from typing import Any
from unittest import mock

import torch
from deepspeed import comm

COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator"
PARTITION = "deepspeed.runtime.zero.partition_parameters"
RELEASED = "_PartitionedParameterCoordinator__params_to_release"
READ = (
    (COORDINATOR, "get_all_parameters"),
    (COORDINATOR, f"PartitionedParameterCoordinator.{RELEASED}"),
    (PARTITION, "_init_external_params"),
    (PARTITION, "AllGatherCoalescedHandle.wait"),
    ("deepspeed.utils.z3_leaf_module", "z3_leaf_module"),
    ("deepspeed.utils.z3_leaf_module", "set_z3_leaf_module"),
    ("deepspeed.runtime.comm.coalesced_collectives", "reduce_scatter_coalesced"),
)
"""What stands in below was written from these."""
DIGEST = "f45f0d8b299082b3"
"""Of their sources."""


def shortcuts() -> Iterator[Any]:
    """Yield patches; none where DeepSpeed's code is another."""
    if digest() != DIGEST:
        return
    coordinator, parameters = import_module(COORDINATOR), _Parameters()
    for module in (coordinator, import_module("deepspeed.runtime.zero.parameter_offload")):
        yield mock.patch.object(module, "iter_params", parameters)
        yield mock.patch.object(module, "z3_leaf_module", _is_leaf)
    owner = coordinator.PartitionedParameterCoordinator
    yield mock.patch.object(owner, RELEASED, _released(_plain(getattr(owner, RELEASED)), parameters))
    stage3 = import_module("deepspeed.runtime.zero.stage3")
    yield mock.patch.object(stage3, "reduce_scatter_coalesced", _reduced)
    handle = import_module(PARTITION).AllGatherCoalescedHandle
    yield mock.patch.object(handle, "wait", _waiting(handle.wait))


@cache
def digest() -> str:
    """Of what DeepSpeed runs where nothing stands in for it; empty where a part of that is not there."""
    try:
        found = [reduce(getattr, name.split("."), import_module(module)) for module, name in READ]
        sources = "".join(inspect.getsource(_plain(one)) for one in found)
    except (ImportError, AttributeError, OSError, TypeError):
        return ""
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def _plain(function: Any) -> Any:
    """A function without its decorators, of which `instrument_w_nvtx` hides what it is around."""
    return inspect.unwrap(inspect.getclosurevars(function).nonlocals.get("func", function))


class _Parameters:
    """Parameters of a module, which stage 3 asks for hundreds of times; those it owns do not change."""

    def __init__(self) -> None:
        self._own: dict[tuple[Any, bool], list[Any]] = {}

    def __call__(self, module: Any, recurse: bool = False) -> Iterable[Any]:
        """As `partitioned_param_coordinator.py: iter_params`."""
        own = self._own.get((module, recurse))
        if own is None:
            own = self._own[module, recurse] = [one for _, one in module.named_parameters(recurse=recurse)]
        external = module._external_params
        return chain(own, external.values()) if external else own


def _is_leaf(module: Any) -> bool:
    """As `z3_leaf_module`, without torch's search for an attribute that is not there."""
    return module.__dict__.get("_z3_leaf", False)


def _released(original: Callable[..., set[int]], parameters: _Parameters) -> Callable[..., set[int]]:
    @cache  # as the original, whose callers change what they are given
    def released(coordinator: Any, module: Any, step: int) -> set[int]:
        """As `__params_to_release`: a module without parameters of its own looks for no later use of them."""
        if all(one.ds_persist for one in parameters(module, _is_leaf(module))):
            return set()
        return original(coordinator, module, step)

    return released


def _reduced(tensors: list[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
    """As `coalesced_collectives.py: reduce_scatter_coalesced`: nothing is cut into the parts of all ranks."""
    ranks, own = comm.get_world_size(group), comm.get_rank(group)
    parts = [math.ceil(tensor.numel() / ranks) for tensor in tensors]
    with torch.no_grad():
        if len(tensors) == 1 and tensors[0].numel() == parts[0] * ranks:
            flat = tensors[0].view(-1)
        else:
            padding = [
                torch.empty(missing, dtype=tensor.dtype, device=tensor.device)
                for rank in range(ranks)
                for tensor, part in zip(tensors, parts, strict=True)
                if (missing := part - _numel_of(rank, tensor, part))
            ]
            flat = torch.cat([*(tensor.view(-1) for tensor in tensors), *padding])
        flat.div_(ranks)
        mine = flat.narrow(0, own * sum(parts), sum(parts))
        starts = [sum(parts[:number]) for number in range(len(parts))]
        return [
            mine.narrow(0, start, _numel_of(own, tensor, part))
            for start, tensor, part in zip(starts, tensors, parts, strict=True)
        ]


def _numel_of(rank: int, tensor: torch.Tensor, part: int) -> int:
    """Elements of a tensor that fall to a rank, of which each has `part` of them as long as there are any."""
    return min(max(tensor.numel() - rank * part, 0), part)


def _waiting(original: Callable[..., None]) -> Callable[..., None]:
    def wait(handle: Any, handle_dependency: bool = True) -> None:
        """As `AllGatherCoalescedHandle.wait`: a weight is made of as many elements, not of ranks' parts."""
        if handle.complete or handle.quantization or handle.use_secondary_tensor or not handle_dependency:
            return original(handle, handle_dependency)
        element = handle.partitions[0].narrow(0, 0, 1)
        for weight in handle.params:
            parts = [element.expand(weight.ds_numel)]
            weight.data = torch.cat(parts).view(weight.ds_shape).to(weight.ds_tensor.dtype)
            weight.ds_status = type(weight.ds_status).AVAILABLE
        handle.complete = True
        return None

    return wait
