"""Points near the limit, dry-run on this machine's GPU before the sweep starts: `gate.tier=dryrun`."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmsys_exp.config.schema import Config, GateTier
from llmsys_exp.report.console import Console
from llmsys_exp.sweeps.gate.outcomes import Outcome
from llmsys_exp.sweeps.gate.playing import FITS, NO_FIT
from llmsys_exp.sweeps.points.composing import Resolved
from planner.units import gib

if TYPE_CHECKING:
    from llmsys_exp.dryrun.run import DryRun

TIER = "gate.tier"
Runs = Callable[[Config], "DryRun"]


def run_here(config: Config) -> DryRun:
    """Dry-run one configuration, without showing how far it is.

    Raises:
        UserError: when it cannot be run here.
    """
    from llmsys_exp.dryrun.checks import DryAsk
    from llmsys_exp.dryrun.gate import is_wanted
    from llmsys_exp.dryrun.run import run_dry
    from llmsys_exp.plan import resolve

    is_wanted(config)
    return run_dry(resolve(config), DryAsk(), Console(io.StringIO()))


def confirmed(
    points: Sequence[Resolved],
    outcomes: Sequence[Outcome],
    *,
    tell: Callable[[str], None] = lambda text: None,
    run: Runs = run_here,
) -> list[Outcome]:
    """Return the outcomes with those near the limit replaced by what their dry runs came to.

    Points that plan alike share one outcome, and one dry run.

    Raises:
        UserError: when a dry run is due and cannot take place.
    """
    due: dict[int, tuple[Resolved, Outcome]] = {}
    for point, outcome in zip(points, outcomes, strict=True):
        if _is_due(point, outcome):
            due.setdefault(id(outcome), (point, outcome))
    known: dict[int, Outcome] = {}
    for number, (key, (point, outcome)) in enumerate(due.items(), start=1):
        tell(f"Dry run {number} of {len(due)}: {' '.join(one.text for one in point.settings)}")
        known[key] = _told(outcome, run(point.config()))
        tell(f"  {known[key].figures['dryrun']}")
    return [
        known[id(outcome)] if _is_due(point, outcome) else outcome
        for point, outcome in zip(points, outcomes, strict=True)
    ]


def _is_due(point: Resolved, outcome: Outcome) -> bool:
    near = outcome.fits and not outcome.sure and outcome.figures.get("where") == "gpu"
    return near and str(point.value(TIER)) == GateTier.dryrun.value


def _told(outcome: Outcome, dry: DryRun) -> Outcome:
    ending = dry.outcome.ending()
    if not dry.is_conclusive:
        told = f"{ending}, on a GPU too small to tell"
        return replace(outcome, figures={**outcome.figures, "dryrun": told})
    survived, needed = dry.outcome.survived, dry.outcome.peak_reserved_bytes
    figures: dict[str, Any] = {
        **outcome.figures,
        "label": FITS if survived else NO_FIT,
        "needed_gib": round(gib(needed), 3) if survived and needed is not None else None,
        "tier": GateTier.dryrun.value,
        "dryrun": ending,
    }
    return replace(outcome, fits=survived, sure=survived, figures=figures)
