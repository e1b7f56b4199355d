"""Peak memory over a grid of micro-batches and lengths for one structure of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner.grid.counts import counts_of
from planner.grid.engines import engine_of
from planner.grid.polynomial import Array, features
from planner.grid.profile import profile_of
from planner.tables import workspace_bytes
from planner.training_case import Method, TrainingCase

WORKSPACES = 2


def peak_bytes(case: TrainingCase, micro_batch: Any, seq_len: Any, grad_accum: Any) -> Array:
    """Highest allocated bytes, engine start included, at each micro-batch, length and accumulation.

    Everything else is taken from `case`. Arrays broadcast against each other. How long gradients are kept
    does not depend on the number of micro-batches beyond two.
    """
    several = np.asarray(grad_accum) > 1
    counts = (2,) if several.all() else (1, 2) if several.any() else (1,)
    found = [_peak_bytes(replace(case, grad_accum=n), micro_batch, seq_len) for n in counts]
    return np.where(several, found[-1], found[0])


def _peak_bytes(case: TrainingCase, micro_batch: Any, seq_len: Any) -> Array:
    lengths = np.asarray(seq_len, dtype=np.float64)
    batches = np.asarray(micro_batch, dtype=np.float64) / case.sequence_parallel
    shape = np.broadcast(batches, lengths).shape
    at = features(np.ravel(np.broadcast_to(batches, shape)), np.ravel(np.broadcast_to(lengths, shape)))
    profile, engine = profile_of(case), engine_of(case, counts_of(case))
    kept = _kept_layers(case)
    top = profile.top_bytes(at, kept) + engine.top
    low = profile.low_bytes(at) + engine.low
    rests = engine.rests + WORKSPACES * workspace_bytes(case.device)
    moments = np.maximum(np.maximum(top, low), float(engine.step))
    peaks = np.maximum(rests + moments, engine.start)
    return np.reshape(peaks, shape)


def _kept_layers(case: TrainingCase) -> int:
    """Blocks whose activations wait for backward: frozen ones below keep nothing unless checkpointed."""
    if case.method is Method.freeze and not case.gradient_checkpointing:
        return case.freeze_last_layers
    return case.architecture.layers
