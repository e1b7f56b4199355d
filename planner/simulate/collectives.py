"""Collectives of one rank among many, on shapes: nothing travels, and DeepSpeed is told that it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from deepspeed.comm import comm
from deepspeed.comm.backend import Backend


class Group:
    """Some ranks, of which this process is one."""

    def __init__(self, ranks: Iterable[int], own: int) -> None:
        self.ranks, self.own = list(ranks), own
        self._rank = self.ranks.index(own) if own in self.ranks else -1
        self.group_name = f"simulated {self.ranks}"

    def size(self) -> int:
        """How many there are."""
        return len(self.ranks)

    def rank(self) -> int:
        """Which of them this process is; -1 where it is none."""
        return self._rank


class Done:
    """Work that needs no waiting for."""

    def wait(self, *_: Any) -> bool:
        """It is done."""
        return True

    def is_completed(self) -> bool:
        """It is done."""
        return True


class SimulatedBackend(Backend):
    """One rank of a world whose other ranks do not exist."""

    using_mpi = False
    has_all_reduce_coalesced = True
    has_coalescing_manager = True

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__("simulated", rank, world_size)
        self.world = Group(range(world_size), rank)
        self.initialized = True

    def init_process_group(self, *_: Any, **__: Any) -> None:
        """It is there."""

    def destroy_process_group(self, group: Any = None) -> None:
        """Nothing to end."""

    def new_group(self, ranks: Sequence[int] | None) -> Group:
        """A group of these ranks; all where None."""
        return self.world if ranks is None else Group(ranks, self.world.own)

    def get_world_group(self) -> Group:
        """All ranks."""
        return self.world

    def get_rank(self, group: Group | None = None) -> int:
        """This rank's place in a group."""
        return (group or self.world).rank()

    def get_world_size(self, group: Group | None = None) -> int:
        """Ranks of a group."""
        return (group or self.world).size()

    def get_global_rank(self, group: Group, group_rank: int) -> int:
        """The rank that has a place in a group."""
        return group.ranks[group_rank]

    def get_backend(self, group: Any = None) -> str:
        """What DeepSpeed expects on GPUs."""
        return "nccl"

    def has_all_gather_into_tensor(self) -> bool:
        """As NCCL."""
        return True

    def has_reduce_scatter_tensor(self) -> bool:
        """As NCCL."""
        return True

    def _travels(self, *_: Any, **__: Any) -> Done:
        return Done()

    all_reduce = all_reduce_coalesced = inference_all_reduce = reduce = broadcast = _travels
    reduce_scatter = reduce_scatter_tensor = all_gather = all_gather_into_tensor = _travels
    all_gather_coalesced = all_to_all_single = all_to_all = barrier = monitored_barrier = _travels
    broadcast_object_list = _travels

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        """All ranks have what this one has."""
        object_list[:] = [obj] * len(object_list)


@contextmanager
def world_of(rank: int, world_size: int) -> Iterator[None]:
    """Be one rank of a world to DeepSpeed; torch.distributed says so too."""
    backend = SimulatedBackend(rank, world_size)
    with (
        mock.patch.object(comm, "cdb", backend),
        mock.patch.object(torch.distributed, "get_world_size", backend.get_world_size),
        mock.patch.object(torch.distributed, "get_rank", backend.get_rank),
    ):
        yield
