"""The gate: refuse a job that the forecast says will run out of memory, before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.errors import DoesNotFit
from llmsys_exp.report.plan_text import verdict_lines

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan


def check(plan: Plan) -> list[str]:
    """Return warnings to print for a job that may start.

    Raises:
        DoesNotFit: when it may not, under the policies `skip` and `error`.
    """
    policy = plan.config.gate.policy
    if policy is GatePolicy.off or plan.verdict.fits:
        return []
    need, *reasons = verdict_lines(plan)
    if policy is GatePolicy.warn:
        return [f"The forecast says that this will not fit: {need}", *reasons]
    raise DoesNotFit(
        f"Not started, because it would run out of memory: {need.rstrip('.')}",
        why="  ".join(reasons),
        do="Run it anyway with gate=warn",
    )
