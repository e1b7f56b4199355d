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
    check_rank,
)
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import ConfigError

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan
    from llmsys_exp.plan.simulations import Simulations
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
        write: makes the files that were asked for, and tells of each.
    """

    fits: bool
    parts: dict[str, Any] = field(default_factory=dict)
    show: Callable[[Console], None] = lambda console: None
    write: Callable[[Console], None] = lambda console: None


def plan_and_answer(config: Config, options: TierOptions, console: Console) -> tuple[Plan, Answer]:
    """Plan a job and let a tier answer; `console` shows how far it is.

    Raises:
        UserError: when it cannot be planned, or the tier cannot answer.
    """
    from llmsys_exp.plan.resolve import forecast_settled, settle
    from llmsys_exp.plan.simulations import Simulations

    if options.name == SIMULATE:
        check_rank(options, config)
    simulations = Simulations(lambda text: console.line(f"  {text}"), rank=_rank(options))
    if is_simulated(config, options):
        return _simulated_plan(config, options, simulations, console)
    plan = forecast_settled(settle(config))
    if options.name == SIMULATE:
        return _both(beside(plan, simulations), options)
    return plan, _TIERS[options.name](plan, options, console)


def is_simulated(config: Config, options: TierOptions) -> bool:
    """Whether simulations alone plan a job: no formula knows its model, and none is asked for."""
    from llmsys_exp.plan.unknown import is_unknown_model

    return options.name not in (FORMULA, ESTIMATE) and is_unknown_model(config)


def _rank(options: TierOptions) -> int:
    """Whose memory is simulated; a dry run has a rank of its own."""
    return options.rank if options.name == SIMULATE else 0


def _simulated_plan(
    config: Config, options: TierOptions, simulations: Simulations, console: Console
) -> tuple[Plan, Answer]:
    """Plan a model that the formula does not know; a dry run answers for the plan that was simulated."""
    from llmsys_exp.plan.resolve import plan_of
    from llmsys_exp.plan.unknown import settle_unknown
    from llmsys_exp.report.tier_text import show_largest

    settled = settle_unknown(config, simulations)
    plan, found = plan_of(settled), settled.simulation
    if options.name == DRYRUN:
        plan.known  # noqa: B018 - a dry run stands beside a forecast, and without one this says why
        return plan, _dryrun(plan, options, console)
    if found is None or plan.verdict is None:
        return plan, Answer(True)
    largest, run = _largest(found), found.run
    return plan, Answer(
        plan.verdict.fits,
        {LARGEST: [one.to_dict() for one in largest]},
        lambda shown: show_largest(shown, largest, rank=_rank(options)),
        lambda told: _write_files(run, plan, options, told),
    )


@dataclass(frozen=True)
class Beside:
    """A plan by formula with what a simulation says of it.

    Attributes:
        plan: its band reaches to both where they are further apart than `APART`.
        simulation: of the same job.
        share: how far what it needs lies from the formula's, as a share of that.
    """

    plan: Plan
    simulation: Simulation
    share: float

    @property
    def widened(self) -> bool:
        """Whether the band of the plan was widened."""
        return abs(self.share) > APART

    @property
    def fits(self) -> bool:
        """Whether the job fits, going by the simulation."""
        return self.simulation.forecast.survives(self.plan.known[1].budget_bytes)


def beside(plan: Plan, simulations: Simulations) -> Beside:
    """Simulate a job that the formula has planned.

    Raises:
        ConfigError: where it cannot be simulated.
    """
    from llmsys_exp.plan.case import in_settings
    from llmsys_exp.report.tier_text import apart
    from planner.errors import CaseError
    from planner.verdict import reaching

    try:
        found = simulations.of(plan.config, "the real code on shapes")
    except CaseError as error:
        raise ConfigError([in_settings(problem) for problem in error.problems]) from error
    forecast, verdict = plan.known
    share = apart(forecast, found.forecast)
    if abs(share) > APART:
        plan = replace(plan, verdict=reaching(verdict, found.forecast.required_bytes))
    return Beside(plan, found, share)


def _both(found: Beside, options: TierOptions) -> tuple[Plan, Answer]:
    from llmsys_exp.report.tier_text import show_largest, show_simulated

    formula, other = found.plan.known[0], found.simulation.forecast
    largest = _largest(found.simulation)

    def show(shown: Console) -> None:
        show_simulated(shown, formula, other, widened=found.widened)
        show_largest(shown, largest, rank=options.rank)

    parts = {SIMULATE: other.to_dict(), LARGEST: [one.to_dict() for one in largest]}

    def write(told: Console) -> None:
        _write_files(found.simulation.run, found.plan, options, told)

    return found.plan, Answer(found.fits, parts, show, write)


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


def _largest(found: Simulation) -> list[Any]:
    from planner.simulate.peak import largest_at_peak

    return largest_at_peak(found.run.recorder)


def _write_files(run: Any, plan: Plan, options: TierOptions, console: Console) -> None:
    from llmsys_exp.report.table_files import write_whole

    for flag, path in options.files.items():
        if flag == SNAPSHOT:
            from planner.simulate.peak import snapshot_bytes

            content = snapshot_bytes(run.recorder)
        else:
            assert flag == TIMELINE
            from llmsys_exp.report.plan_plots import picture_bytes
            from llmsys_exp.report.timeline_plot import timeline_figure

            content = picture_bytes(timeline_figure(run.arena, plan), path.suffix)
        write_whole(path, content, force=options.force)
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
    DRYRUN: _dryrun,
}
