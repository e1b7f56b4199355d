"""What each tier of `llmsys plan` says of a settled job, by its own means.

Settings are chosen by the formula, or by simulations where it does not know the model; a tier answers for the
job that came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.plan_tiers import (
    AUTO,
    DRYRUN,
    ESTIMATE,
    FORMULA,
    SIMULATE,
    SNAPSHOT,
    TIMELINE,
    TierOptions,
)
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import ConfigError

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan
    from llmsys_exp.report.console import Console
    from planner.simulate.tier import Simulation

APART = 0.02
"""Formula and simulation that differ by more than this share widen the band of the verdict."""
LARGEST = "largest"


@dataclass(frozen=True)
class Answer:
    """What a tier says of a plan.

    Attributes:
        fits: its verdict.
        parts: plain values for `--json`, beside those of the plan.
        show: writes it below the plan.
        plan: the plan as it is shown, where the tier changes it.
    """

    fits: bool
    parts: dict[str, Any] = field(default_factory=dict)
    show: Callable[[Console], None] = lambda console: None
    plan: Plan | None = None


def plan_and_answer(config: Config, options: TierOptions, console: Console) -> tuple[Plan, Answer]:
    """Plan a job and let a tier answer; `console` shows how far it is.

    Raises:
        UserError: when it cannot be planned, or the tier cannot answer.
    """
    from llmsys_exp.plan.resolve import forecast_settled, settle
    from llmsys_exp.plan.unknown import is_unknown_model

    if options.name not in (FORMULA, ESTIMATE) and is_unknown_model(config):
        return _simulated_plan(config, options, console)
    plan = forecast_settled(settle(config))
    found = _TIERS[options.name](plan, options, console)
    return found.plan or plan, found


def _simulated_plan(config: Config, options: TierOptions, console: Console) -> tuple[Plan, Answer]:
    """Plan a model that the formula does not know; a dry run answers for the plan that was simulated."""
    from llmsys_exp.plan.resolve import plan_of
    from llmsys_exp.plan.unknown import settle_unknown
    from llmsys_exp.report.tier_text import show_largest

    rank = options.rank if options.name == SIMULATE else 0
    settled = settle_unknown(config, rank=rank, tell=lambda text: console.line(f"  {text}"))
    plan, found = plan_of(settled), settled.simulation
    if options.name == DRYRUN:
        plan.known  # noqa: B018 - a dry run stands beside a forecast, and without one this says why
        return plan, _dryrun(plan, options, console)
    if found is None or plan.verdict is None:
        return plan, Answer(True)
    _write_files(found, plan, options, console)
    largest = _largest(found)
    parts = {LARGEST: [one.to_dict() for one in largest]}
    return plan, Answer(plan.verdict.fits, parts, lambda shown: show_largest(shown, largest))


def _formula(plan: Plan, options: TierOptions, console: Console) -> Answer:
    assert plan.verdict is not None  # the formula forecasts what it knows
    return Answer(plan.verdict.fits)


def _estimate(plan: Plan, options: TierOptions, console: Console) -> Answer:
    from llmsys_exp.plan.case import planner_case
    from llmsys_exp.report.tier_text import show_estimate
    from planner.errors import CaseError
    from planner.grid.single import estimate

    try:
        found = estimate(planner_case(plan.config, dtype=plan.config.training.dtype.value))
    except CaseError as error:
        raise ConfigError(list(error.problems)) from error
    forecast, verdict = plan.known
    return Answer(
        found.peak_bytes <= verdict.budget_bytes,
        {ESTIMATE: found.to_dict()},
        lambda shown: show_estimate(shown, forecast, found.peak_bytes),
    )


def _simulate(plan: Plan, options: TierOptions, console: Console) -> Answer:
    from llmsys_exp.plan.case import case_content
    from llmsys_exp.plan.simulated import own_code
    from llmsys_exp.report.tier_text import apart, show_largest, show_simulated
    from planner.errors import CaseError
    from planner.simulate.tier import simulation
    from planner.verdict import reaching

    ranks, own = plan.config.hardware.gpus_per_node, own_code(plan.config)
    content = case_content(plan.config, dtype=plan.config.training.dtype.value)
    console.line("  simulating: the real code runs on shapes ...")
    try:
        found = simulation(content, ranks_per_node=ranks, rank=options.rank, **own)
    except CaseError as error:
        raise ConfigError(list(error.problems)) from error
    _write_files(found, plan, options, console)
    forecast, verdict = plan.known
    largest, other = _largest(found), found.forecast
    share = apart(forecast, other)
    if abs(share) > APART:
        plan = replace(plan, verdict=reaching(verdict, other.required_bytes))

    def show(shown: Console) -> None:
        show_simulated(shown, forecast, other, widened=abs(share) > APART)
        show_largest(shown, largest)

    return Answer(
        other.survives(verdict.budget_bytes),
        {SIMULATE: other.to_dict(), LARGEST: [one.to_dict() for one in largest]},
        show,
        plan,
    )


def _largest(found: Simulation) -> list[Any]:
    from planner.simulate.peak import largest_at_peak

    return largest_at_peak(found.run.recorder)


def _write_files(found: Simulation, plan: Plan, options: TierOptions, console: Console) -> None:
    from llmsys_exp.report.table_files import write_whole

    for flag, path in options.files.items():
        if flag == SNAPSHOT:
            from planner.simulate.peak import snapshot_bytes

            content = snapshot_bytes(found.run.recorder)
        else:
            assert flag == TIMELINE
            from llmsys_exp.report.plan_plots import picture_bytes
            from llmsys_exp.report.timeline_plot import timeline_figure

            content = picture_bytes(timeline_figure(found.run.arena, plan), path.suffix)
        write_whole(path, content)
        console.line(f"Wrote {path}")


def _dryrun(plan: Plan, options: TierOptions, console: Console) -> Answer:
    from llmsys_exp.dryrun.checks import DryAsk
    from llmsys_exp.dryrun.run import run_dry
    from llmsys_exp.report.tier_text import show_dryrun

    dry = run_dry(plan, DryAsk(options.rank, options.search, options.shared), console)
    return Answer(
        dry.fits,
        {DRYRUN: dry.to_dict()},
        lambda shown: show_dryrun(shown, dry),
    )


_TIERS: dict[str, Callable[[Plan, TierOptions, Console], Answer]] = {
    AUTO: _formula,
    FORMULA: _formula,
    ESTIMATE: _estimate,
    SIMULATE: _simulate,
    DRYRUN: _dryrun,
}
