"""The tiers of `llmsys plan --tier NAME`: each says by its own means what a settled job needs.

Settings are chosen by the formula; a tier answers for the job that came of it. A tier is one row of `TIERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.options import take_values
from llmsys_exp.errors import ConfigError, UserError, unknown_name

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan
    from llmsys_exp.report.console import Console

FORMULA, ESTIMATE, SIMULATE, DRYRUN = "formula", "estimate", "simulate", "dryrun"
TIER, RANK, SEARCH, SHARED = "--tier", "--rank", "--search", "--allow-shared"
TIER_FLAGS = (TIER, RANK, SEARCH, SHARED)
_OVERRIDE = "tier="
_TAKES = {SIMULATE: (RANK,), DRYRUN: (RANK, SEARCH, SHARED)}


@dataclass(frozen=True)
class TierOptions:
    """Which tier answers, and what is asked of a dry run."""

    name: str = FORMULA
    rank: int = 0
    search: str | None = None
    shared: bool = False


@dataclass(frozen=True)
class Answer:
    """What a tier says of a plan.

    Attributes:
        fits: its verdict.
        parts: plain values for `--json`, beside those of the plan.
        show: writes it below the plan.
    """

    fits: bool
    parts: dict[str, Any] = field(default_factory=dict)
    show: Callable[[Console], None] = lambda console: None


def split_tier_options(arguments: Sequence[str]) -> tuple[TierOptions, list[str]]:
    """Return the flags of tiers, and the arguments without them; `tier=NAME` is `--tier NAME`.

    Raises:
        UserError: for a tier that is none, or flags that are of another.
    """
    told = [f"--{text}" if text.startswith(_OVERRIDE) else text for text in arguments]
    values, rest = take_values(told, {TIER: "|".join(TIERS), RANK: "NUMBER", SEARCH: "WHAT"})
    name = values.get(TIER, FORMULA)
    if name not in TIERS:
        raise unknown_name("tier", name, tuple(TIERS), where=TIER)
    takes = _TAKES.get(name, ())
    for flag in (RANK, SEARCH, SHARED):
        if (flag in values or flag in rest) and flag not in takes:
            others = " or ".join(f"{TIER} {one}" for one, flags in _TAKES.items() if flag in flags)
            raise UserError(f"{flag} goes with {others}", where=f"{TIER} {name}", do="Leave one out")
    rank = values.get(RANK, "0")
    if not rank.isdigit():
        raise UserError(f"{RANK} {rank} is not a rank", do=f"Write {RANK} NUMBER, counted from 0")
    options = TierOptions(name, int(rank), values.get(SEARCH), SHARED in rest)
    return options, [text for text in rest if text != SHARED]


def check_tier(options: TierOptions, *, serves: bool = False, swept: bool = False) -> None:
    """Refuse another tier than the formula where none is asked.

    Raises:
        UserError: saying where it is.
    """
    if options.name == FORMULA:
        return
    where = f"{TIER} {options.name}"
    if serves:
        raise UserError("What is served has one tier, formula", where=where, do=f"Leave {TIER} out")
    if swept:
        raise UserError(
            "The points of a sweep are planned by formula",
            where=f"{where} with -m",
            do="Plan one point; in `llmsys sweep`, gate.tier=dryrun dry-runs those near the limit",
        )


def answer(plan: Plan, options: TierOptions, console: Console) -> Answer:
    """Let a tier answer; `console` shows how far it is.

    Raises:
        UserError: when it cannot.
    """
    return TIERS[options.name](plan, options, console)


def _formula(plan: Plan, options: TierOptions, console: Console) -> Answer:
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
    return Answer(
        found.peak_bytes <= plan.verdict.budget_bytes,
        {ESTIMATE: found.to_dict()},
        lambda shown: show_estimate(shown, plan.forecast, found.peak_bytes),
    )


def _simulate(plan: Plan, options: TierOptions, console: Console) -> Answer:
    from llmsys_exp.plan.case import case_content
    from llmsys_exp.report.tier_text import show_simulated
    from planner.errors import CaseError
    from planner.simulate.tier import simulation

    hardware, trust = plan.config.hardware, plan.config.model.trust_remote_code
    content = case_content(plan.config, dtype=plan.config.training.dtype.value)
    console.line("  simulating: the real code runs on shapes ...")
    try:
        found = simulation(content, ranks_per_node=hardware.gpus_per_node, rank=options.rank, trust=trust)
    except CaseError as error:
        raise ConfigError(list(error.problems)) from error
    return Answer(
        found.forecast.survives(plan.verdict.budget_bytes),
        {SIMULATE: found.forecast.to_dict()},
        lambda shown: show_simulated(shown, plan.forecast, found.forecast),
    )


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


TIERS: dict[str, Callable[[Plan, TierOptions, Console], Answer]] = {
    FORMULA: _formula,
    ESTIMATE: _estimate,
    SIMULATE: _simulate,
    DRYRUN: _dryrun,
}
