"""What a training worker is told beside the plan: arithmetic per token, and where its memory ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmsys_exp.config.schema import ModelKind
from llmsys_exp.plan.budget import allocator_limit_bytes
from llmsys_exp.plan.case import planner_case
from planner.work import work_of

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan


def worker_facts(plan: Plan) -> dict[str, Any]:
    """Return `work` (see `planner.work`) and `allocator_limit_bytes`; nothing without a planner's case."""
    if plan.config.model.kind is not ModelKind.causal_lm:
        return {}
    case = planner_case(plan.config, dtype=plan.config.training.dtype.value)
    return {
        "work": work_of(case).to_dict(),
        "allocator_limit_bytes": allocator_limit_bytes(plan.config, case),
    }
