"""What a training worker is told beside the plan: arithmetic per token, and where its memory ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmsys_exp.config.schema import Config, ModelKind
from llmsys_exp.plan.budget import allocator_limit_bytes
from llmsys_exp.plan.case import planner_case
from llmsys_exp.plan.unknown import is_unknown_model
from planner.work import work_of

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan


def worker_facts(plan: Plan) -> dict[str, Any]:
    """Return `work` (see `planner.work`) and `allocator_limit_bytes`; nothing without a planner's case."""
    if plan.config.model.kind is not ModelKind.causal_lm:
        return {}
    if is_unknown_model(plan.config):  # nor is the arithmetic of its blocks known
        limited = plan.config.hardware.enforce_memory
        return {"allocator_limit_bytes": _limit_of_unknown(plan.config)} if limited else {}
    case = planner_case(plan.config, dtype=plan.config.training.dtype.value)
    return {
        "work": work_of(case).to_dict(),
        "allocator_limit_bytes": allocator_limit_bytes(plan.config, case),
    }


def _limit_of_unknown(config: Config) -> int | None:
    from llmsys_exp.plan.simulations import case_of

    return allocator_limit_bytes(config, case_of(config))
