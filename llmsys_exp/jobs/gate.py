"""The gate: refuse a job that the forecast says will run out of memory, before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.errors import DoesNotFit
from llmsys_exp.report.plan_text import verdict_lines

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan


def check(plan: Plan) -> list[str]:
    """Return warnings to print for a training job that may start; raises as `judge` does."""
    if plan.verdict is None:
        warns = plan.config.gate.policy is GatePolicy.warn
        return ["Nothing is forecast, so nothing says whether this will fit"] if warns else []
    return judge(plan.config.gate.policy, fits=plan.verdict.fits, lines=lambda: verdict_lines(plan))


def judge(
    policy: GatePolicy, *, fits: bool, lines: Callable[[], Sequence[str]], what: str = "it"
) -> list[str]:
    """Return warnings to print for a job that may start.

    Args:
        policy: what is done with a job that does not fit.
        fits: whether the forecast says that it does.
        lines: say what it needs, then why.
        what: would run out of memory.

    Raises:
        DoesNotFit: when it may not, under the policies `skip` and `error`.
    """
    if policy is GatePolicy.off or fits:
        return []
    need, *reasons = lines()
    if policy is GatePolicy.warn:
        return [f"The forecast says that this will not fit: {need}", *reasons]
    raise DoesNotFit(
        f"Not started, because {what} would run out of memory: {need.rstrip('.')}",
        why="  ".join(reasons),
        do="Run it anyway with gate=warn",
    )
