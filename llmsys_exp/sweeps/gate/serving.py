"""Verdicts of points that answer prompts: what `llmsys plan` says of their engine."""

from __future__ import annotations

from dataclasses import dataclass

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.sweeps.gate.playing import NO_FIT


@dataclass(frozen=True)
class Served:
    """What is known of an engine: see `playing.Judged`; `fix` are overrides as one text."""

    label: str
    needed_bytes: float | None = None
    limit_bytes: int | None = None
    fix: str | None = None
    cause: str | None = None
    refused: str = ""


def judge_serving(config: Config) -> Served | None:
    """Plan the engine of a configuration; None where there is nothing of its own to plan."""
    from llmsys_exp.plan.serving_step import plan_serving
    from llmsys_exp.report.serving_text import serving_row

    try:
        plan = plan_serving(config)
        if plan is None:
            return None
        row = serving_row(plan)
    except UserError as error:
        return Served(NO_FIT, refused=str(error))
    return Served(plan.label, row["required_bytes"], row["budget_bytes"], plan.fix, plan.cause)
