"""Room on disk for what a point writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from llmsys_exp.config.schema import Config, Step
from llmsys_exp.runs.room import free_disk_bytes
from llmsys_exp.sweeps.gate.node import layout_of
from planner.disk import OPTIMIZER, WEIGHTS, disk_bytes
from planner.training_case import TrainingCase


def written_bytes(config: Config, case: TrainingCase) -> int:
    """The most that a run folder holds: the result, its checkpoints, and the merged model if it is made."""
    return most_bytes(config, dict(_uses(replace(case, micro_batch=1, grad_accum=1, seq_len=8))))


def most_bytes(config: Config, uses: Mapping[str, int]) -> int:
    """The same from the bytes of each use, as a forecast has them."""
    one = uses.get(WEIGHTS, 0) + uses.get(OPTIMIZER, 0)
    # A new checkpoint is whole before the oldest goes.
    copies = 0 if config.checkpoint.every is None else config.checkpoint.keep_last + 1
    merged = uses.get("merged model", 0) if Step.export in config.steps else 0
    return uses["result"] + copies * one + merged


def free_bytes(outputs: str) -> int:
    """What may still be written where run folders go, which need not be there yet."""
    folder = Path(outputs).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    return free_disk_bytes(folder)


@lru_cache(maxsize=1024)
def _uses(case: TrainingCase) -> tuple[tuple[str, int], ...]:
    return tuple(disk_bytes(case, layout_of(case)).items())
