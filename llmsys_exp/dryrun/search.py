"""Where a job really ends: the smallest limit, the largest micro-batch or the longest sequence that survives.

Each probe is a process of its own, with an allocator that has seen nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llmsys_exp.config.schema import Config
from llmsys_exp.config.tree import copy_of
from llmsys_exp.dryrun.checks import LENGTH, LIMIT, MICRO_BATCH
from llmsys_exp.dryrun.outcome import PHASES, Outcome, rounded_gib
from llmsys_exp.errors import UserError
from llmsys_exp.plan import Plan, resolve
from llmsys_exp.plan.case import hf_config
from planner.units import MIB

MOST_PROBES = 14
LONGEST_STRIDE = 4
MOST_PLAYS = 40
LIMIT_STEP_BYTES = 16 * MIB
LIMIT_SHARE = 1 / 500
"""A limit is found to this share of it, or to `LIMIT_STEP_BYTES` if that is more."""
MOST_MICRO_BATCH = 4096
MOST_TOKENS = 1 << 20
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
Probe = Callable[[Plan, "int | None"], Outcome]
"""Runs a plan, under a limit in bytes where one is given."""


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        what: limit (bytes), micro_batch, or length (tokens).
        value: the best that survived; None where nothing did.
        failed: the nearest that did not; None where none failed.
        forecast: what the formula says.
        probes: each value that was tried, and whether it survived.
    """

    what: str
    value: int | None
    failed: int | None
    forecast: int | None
    probes: tuple[tuple[int, bool], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values; limits in GiB."""
        scale = (lambda one: one) if self.what != LIMIT else rounded_gib
        return {
            "what": self.what if self.what != LIMIT else "limit_gib",
            "value": scale(self.value),
            "failed": scale(self.failed),
            "formula": scale(self.forecast),
            "probes": [[scale(value), survived] for value, survived in self.probes],
        }


def search(what: str, plan: Plan, first: Outcome, run: Probe) -> Found:
    """Search from a run that is done.

    Args:
        what: limit, micro_batch or length.
        plan: the job.
        first: its outcome; without any limit for `limit`, else under that of its card.
        run: runs another probe.
    """
    if what == LIMIT:
        return _smallest_limit(plan, first, run)
    axis = _micro_batches(plan) if what == MICRO_BATCH else _lengths(plan)
    return _largest(axis, first, run)


def _smallest_limit(plan: Plan, first: Outcome, run: Probe) -> Found:
    forecast = plan.forecast.required_bytes
    if not first.survived or first.peak_reserved_bytes is None:
        return Found(LIMIT, None, None, forecast)
    # less than is allocated at once is never enough, and what was reserved always is
    failed = max(first.peak_bytes(phase) or 0 for phase in PHASES) - 1
    least = first.peak_reserved_bytes
    probes: list[tuple[int, bool]] = [(least, True)]
    probe = forecast  # the likeliest place
    while least - failed > max(LIMIT_STEP_BYTES, least * LIMIT_SHARE) and len(probes) <= MOST_PROBES:
        if not failed < probe < least:
            probe = (least + failed) // 2
        survived = run(plan, probe).survived
        probes.append((probe, survived))
        least, failed = (probe, failed) if survived else (least, probe)
        probe = (least + failed) // 2
    return Found(LIMIT, least, failed, forecast, tuple(probes))


@dataclass
class _Axis:
    """A setting that is searched: its values are multiples of `unit`."""

    what: str
    now: int
    unit: int
    most: int
    make: Callable[[int], Config]
    plans: dict[int, Plan | None] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The largest value there is, in units."""
        return self.most // self.unit

    def plan(self, value: int) -> Plan | None:
        """Return the plan at a value; None where there is no such job."""
        if value not in self.plans:
            try:
                self.plans[value] = resolve(self.make(value))
            except UserError:
                self.plans[value] = None
        return self.plans[value]

    def forecast_fits(self, value: int) -> bool:
        """Whether the formula lets it pass."""
        plan = self.plan(value)
        return plan is not None and plan.verdict.fits


def _micro_batches(plan: Plan) -> _Axis:
    def make(value: int) -> Config:
        config = copy_of(plan.config)
        config.training.micro_batch, config.training.global_batch = value, None
        return config

    return _Axis(MICRO_BATCH, int(plan.config.training.micro_batch), 1, MOST_MICRO_BATCH, make)


def _lengths(plan: Plan) -> _Axis:
    def make(value: int) -> Config:
        config = copy_of(plan.config)
        config.data.max_length = value
        return config

    now = plan.config.data.max_length
    shape = hf_config(plan.config)
    # beyond its positions a model cannot run, or nobody trains it
    most = min((int(shape[key]) for key in POSITIONS if shape.get(key)), default=MOST_TOKENS)
    return _Axis(LENGTH, now, 64 if now >= 512 else 8, most, make)


def _largest(axis: _Axis, first: Outcome, run: Probe) -> Found:
    forecast, _ = _boundary(axis, axis.forecast_fits, start=axis.now, most_probes=MOST_PLAYS)
    tried: dict[int, bool] = {axis.now: first.survived}

    def survives(value: int) -> bool:
        if value not in tried:
            plan = axis.plan(value)
            tried[value] = plan is not None and run(plan, None).survived
        return tried[value]

    known = (axis.now // axis.unit, axis.last + 1) if first.survived else (0, -(-axis.now // axis.unit))
    start = forecast or axis.unit
    best, failed = _boundary(axis, survives, start=start, most_probes=MOST_PROBES, known=known)
    if first.survived:
        best = max(best or 0, axis.now)
    return Found(axis.what, best, failed, forecast, tuple(sorted(tried.items())))


def _boundary(
    axis: _Axis,
    survives: Callable[[int], bool],
    *,
    start: int,
    most_probes: int,
    known: tuple[int, int] | None = None,
) -> tuple[int | None, int | None]:
    """Return the largest value that survives and the smallest above it that does not.

    Goes from `start` in growing strides to the other side of the boundary, then halves the distance.

    Args:
        axis: what is searched.
        survives: asked of values.
        start: where the boundary is likely to be.
        most_probes: how often it is asked.
        known: units of which the first is known to survive (0: none is) and the second not to.
    """
    best, failed = known or (0, axis.last + 1)
    probe, stride, first = start // axis.unit, 1, None
    for _ in range(most_probes):
        if failed - best <= 1:
            break
        if not best < probe < failed:
            probe = (best + failed) // 2
        alive = survives(probe * axis.unit)
        best, failed = (probe, failed) if alive else (best, probe)
        first = alive if first is None else first
        # near the likely place strides find the other side soonest; after that the middle is next
        strides = alive is first and stride <= LONGEST_STRIDE
        probe = (probe + stride if alive else probe - stride) if strides else 0
        stride *= 2
    return (best * axis.unit or None), (failed * axis.unit if failed <= axis.last else None)
