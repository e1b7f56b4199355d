"""Main memory of a node: the same for many points, so each figure is found once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from planner.host import host_bytes, host_peak_bytes
from planner.network.build import build_network
from planner.network.modules import Network
from planner.training_case import TrainingCase, ZeroSettings

SHORTEST = 8
"""A length for what no length matters to."""


def node_bytes(case: TrainingCase, pair: tuple[int, int], ranks_per_node: int) -> int:
    """The most a node holds in main memory.

    Args:
        case: the job; its own sizes do not count.
        pair: micro-batch and accumulation.
        ranks_per_node: processes that a node holds.
    """
    micro, accum = pair
    if not case.checkpointing.cpu:
        micro = 1  # only checkpoints on the CPU take more for a larger batch
    return _node_bytes(case, micro, min(accum, 2), ranks_per_node)


@lru_cache(maxsize=4096)
def _node_bytes(case: TrainingCase, micro: int, accum: int, ranks_per_node: int) -> int:
    if not case.checkpointing.cpu and case.seq_len != SHORTEST:
        return _node_bytes(replace(case, seq_len=SHORTEST), micro, accum, ranks_per_node)
    sized = replace(case, micro_batch=micro, grad_accum=accum)
    return host_peak_bytes(host_bytes(sized, layout_of(case), ranks_per_node=ranks_per_node))


def layout_of(case: TrainingCase) -> Network:
    """Return the network of a case, which nobody may change: cases of other engines and sizes share it."""
    return _layout(
        replace(
            case,
            micro_batch=1,
            grad_accum=1,
            seq_len=SHORTEST,
            world_size=1,
            zero_stage=0,
            offload_optimizer="none",
            offload_param="none",
            zero=ZeroSettings(),
        )
    )


@lru_cache(maxsize=64)
def _layout(case: TrainingCase) -> Network:
    return build_network(case)
