"""What `llmsys plan` says of an engine that answers prompts: by formula, and simulated where it is asked to.

`planner.predict` simulates whatever engine it can; nothing here depends on which.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.plan_tiers import AUTO, FORMULA, RANK, SIMULATE, SNAPSHOT, TIER, TIMELINE, TierOptions
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.report.console import Console

if TYPE_CHECKING:
    from llmsys_exp.plan.serving import ServingPlan

APART = 0.02
"""Formula and simulation that differ by more than this share make `tight` of what fits by one of them."""


@dataclass(frozen=True)
class ServedAnswer:
    """The plan of an engine, and what a simulation says of it where it stands beside the formula."""

    plan: ServingPlan
    other: Any = None

    @property
    def fits(self) -> bool:
        """Whether it fits, going by the simulation where there is one."""
        return self.plan.fits if self.other is None else self.other.fits is not False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        content = self.plan.describe()
        return content if self.other is None else {**content, SIMULATE: self.other.to_dict()}

    def show(self, console: Console) -> None:
        """Write it as text."""
        from llmsys_exp.report.serving_text import show_serving, show_simulated_call

        show_serving(console, self.plan)
        if self.other is not None:
            show_simulated_call(console, self.plan.forecast, self.other)

    def row(self) -> dict[str, Any]:
        """Return the row of a table of plans."""
        from llmsys_exp.report.console import gib
        from llmsys_exp.report.serving_text import needed_bytes, serving_row

        row = serving_row(self.plan)
        if self.other is None:
            return row
        extra = {"simulated": gib(needed_bytes(self.other)), "apart": f"{100 * self.share:+.1f} %"}
        return {**row, "extra": {**extra, **row["extra"]}}

    @property
    def share(self) -> float:
        """How far what a simulation says is needed lies from the formula's, as a share of that."""
        from llmsys_exp.report.serving_text import needed_bytes

        return needed_bytes(self.other) / needed_bytes(self.plan.forecast) - 1


def answer_served(
    config: Config, options: TierOptions, tell: Callable[[str], None], *, alone: bool
) -> ServedAnswer | None:
    """Plan the engine of a configuration; None where it has none of its own.

    Args:
        config: of the whole run.
        options: which tier answers.
        tell: hears what is simulated.
        alone: whether nothing is trained; a tier other than the formula is then asked of the engine.

    Raises:
        UserError: for what cannot start, and a tier that engines do not have.
    """
    from llmsys_exp.plan.serving_step import plan_serving

    if alone:
        _check(options)
    plan = plan_serving(config, tell=tell, formula=options.name == FORMULA)
    if alone and options.name == SIMULATE and plan is not None and plan.forecast is None:
        why = plan.notes[-1].removeprefix("no forecast: ") if plan.notes else "nothing is started here"
        raise UserError(
            f"It cannot be simulated: {why}",
            where=f"{TIER} {SIMULATE}",
            do=f"Leave {TIER} out to plan it without a forecast",
        )
    if plan is None or not alone or options.name != SIMULATE or plan.forecast is None:
        return None if plan is None else ServedAnswer(plan)
    if plan.forecast.tier == SIMULATE:  # no formula knows the model
        return ServedAnswer(plan)
    return _beside(plan, tell)


def _check(options: TierOptions) -> None:
    """Refuse what is asked of training alone."""
    if options.name not in (AUTO, FORMULA, SIMULATE):
        raise UserError(
            f"What is served has the tiers {FORMULA} and {SIMULATE}", where=f"{TIER} {options.name}"
        )
    asked = [*options.files, *([RANK] if options.rank else [])]
    if asked:
        raise UserError(
            f"{asked[0]} is of training",
            where="steps=[infer]",
            do=f"Leave {RANK}, {SNAPSHOT} and {TIMELINE} out",
        )


def _beside(plan: ServingPlan, tell: Callable[[str], None]) -> ServedAnswer:
    from llmsys_exp.plan.serving_call import simulate_content
    from llmsys_exp.plan.serving_case import in_settings
    from planner.errors import CaseError

    assert plan.content is not None  # it was forecast
    python = None if plan.python == sys.executable else plan.python  # whose is chosen, or the planner's own
    tell("simulating: the real code runs on shapes ...")
    try:
        found = ServedAnswer(plan, simulate_content(dict(plan.content), sglang_python=python))
    except CaseError as error:
        raise ConfigError([in_settings(problem) for problem in error.problems]) from error
    if abs(found.share) > APART and plan.label == "fits" and not found.fits:
        return replace(found, plan=replace(plan, label="tight"))
    return found
