"""What happens after a GPU ran out of memory: recorded, and by `launcher.on_oom` tried again with less.

`smaller_batch` halves the micro-batch and keeps the global batch, so that the run stays the same run; it goes
on from its newest checkpoint. `replan` asks the planner for the fastest settings that need clearly less than
the ones that failed; what the user set stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from llmsys_exp.config.schema import AUTO, Config, OnOom
from llmsys_exp.config.tree import value_at
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.plan import Choice, Plan, resolve
from planner.units import GIB, gib

STRICTER = 0.95
"""A forecast that was wrong once is not trusted to the last megabyte again."""

SETTINGS = (
    "training.micro_batch",
    "training.grad_accum",
    "training.gradient_checkpointing",
    "zero.stage",
    "offload.optimizer",
    "offload.param",
)
STATE_SETTINGS = ("zero.stage", "offload.optimizer", "offload.param")
"""Checkpoints of one do not load into another."""


class NothingSmaller(UserError):
    """No setting is left that needs less."""


@dataclass(frozen=True)
class Attempt:
    """One attempt that ran out of memory."""

    number: int
    plan: Plan
    failure: JobError

    def to_dict(self) -> dict[str, Any]:
        """Return the record for attempts.json and the manifest."""
        forecast, verdict = self.plan.forecast, self.plan.verdict
        planned = None
        if forecast is not None and verdict is not None:
            planned = {
                "peak_allocated_gib": round(gib(forecast.peak_allocated_bytes), 3),
                "required_gib": round(gib(forecast.required_bytes), 3),
                "budget_gib": round(gib(verdict.budget_bytes), 3),
            }
        return {
            "attempt": self.number,
            "settings": settings_of(self.plan.config),
            "planned": planned,
            "failure": {"kind": self.failure.kind, "text": self.failure.what, **self.failure.details},
        }


def settings_of(config: Config) -> dict[str, Any]:
    """Return the settings that a further attempt may change."""
    return {key: _plain(value_at(config, key)) for key in SETTINGS}


def changes(before: Config, after: Config) -> list[str]:
    """Say what another attempt does otherwise."""
    old, new = settings_of(before), settings_of(after)
    return [f"{key} {old[key]} -> {new[key]}" for key in SETTINGS if old[key] != new[key]]


def keeps_checkpoints(before: Config, after: Config) -> bool:
    """Whether what one attempt saved can be loaded by the other."""
    return all(value_at(before, key) == value_at(after, key) for key in STATE_SETTINGS)


def next_plan(asked: Config, plan: Plan, failure: JobError) -> Plan:
    """Return the plan of another attempt.

    Args:
        asked: the configuration as the user gave it, `auto` included.
        plan: what failed.
        failure: how.

    Raises:
        NothingSmaller: when there is none under the policy.
    """
    if plan.config.launcher.on_oom is OnOom.smaller_batch:
        return _smaller_batch(plan)
    return _replan(asked, plan, failure)


def _smaller_batch(plan: Plan) -> Plan:
    training = plan.config.training
    micro, share = int(training.micro_batch), int(training.micro_batch) * int(training.grad_accum)
    smaller = max((size for size in range(1, micro // 2 + 1) if share % size == 0), default=0)
    if not smaller:
        raise NothingSmaller("training.micro_batch is 1 already", do="Try launcher.on_oom=replan")
    config = deepcopy(plan.config)
    config.training.micro_batch, config.training.grad_accum = smaller, share // smaller
    reason = f"{micro} ran out of memory; the global batch stays {training.global_batch}"
    made = [
        Choice("training.micro_batch", smaller, reason, given=False),
        Choice("training.grad_accum", share // smaller, reason, given=False),
    ]
    changed = {choice.key for choice in made}
    kept = [choice for choice in plan.choices if choice.key not in changed]
    return replace(resolve(config), choices=(*kept, *made))


def _replan(asked: Config, plan: Plan, failure: JobError) -> Plan:
    config, training = deepcopy(asked), asked.training
    if plan.forecast is None or plan.verdict is None:
        raise NothingSmaller("Nothing was forecast for this job", do="Try launcher.on_oom=smaller_batch")
    margin_gib, budget = asked.gate.margin_gib, plan.verdict.budget_bytes
    limit = int(STRICTER * min(budget, plan.forecast.required_bytes, _room(failure.details)))
    config.gate.margin_gib = margin_gib + (budget - limit) / GIB
    # what is settled beside memory stays as it was
    config.data, config.launcher, config.inference = (
        plan.config.data,
        plan.config.launcher,
        plan.config.inference,
    )
    if AUTO == training.micro_batch == training.grad_accum and training.global_batch is None:
        config.training.global_batch = plan.config.training.global_batch
    found = resolve(config)
    if found.verdict is None or not found.verdict.fits:
        raise NothingSmaller(
            f"The planner knows no settings that need less than {gib(limit):.2f} GiB and keep what is set",
            do="Leave more of these on auto: " + ", ".join(SETTINGS),
        )
    # the margin was a means; the job keeps the user's
    found.config.gate.margin_gib = margin_gib
    known = {choice.key for choice in found.choices}
    return replace(found, choices=(*found.choices, *(one for one in plan.choices if one.key not in known)))


def _room(details: Mapping[str, Any]) -> int:
    """Bytes that the allocator could have had in all, as the worker saw it."""
    if details.get("limit_bytes"):
        return int(details["limit_bytes"])
    if "reserved_bytes" not in details:
        return 2**63
    return int(details["reserved_bytes"]) + int(details.get("device_free_bytes", 0))


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
