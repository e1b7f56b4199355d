"""`llmsys sweep run` of a file with `search`: check what it asks for, and make the folder of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import GateTier
from llmsys_exp.errors import UserError, unknown_name
from llmsys_exp.report.console import Console
from llmsys_exp.runs.folder import check_name
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep
from llmsys_exp.sweeps.ledger.ledger import LOST, PLANNED, RUNNING
from llmsys_exp.sweeps.ledger.searching import SearchLedger
from llmsys_exp.sweeps.points.find import VERBS, search_base
from llmsys_exp.sweeps.points.sweep_file import SweepFile, sweep_of
from llmsys_exp.sweeps.running.runner import RunOptions
from llmsys_exp.sweeps.search.best import Standing
from llmsys_exp.sweeps.search.feasible import Feasible, composed
from llmsys_exp.sweeps.search.study import importances, require_optuna, trials_of


def new_search(
    read: SweepFile, overrides: Sequence[str], verb: str, how: RunOptions, console: Console
) -> tuple[SweepPaths, Sweep]:
    """Make the folder of a new search; nothing is made where anything is wrong.

    Raises:
        UserError: naming what is wrong; `DoesNotFit` where no combination fits.
    """
    if verb not in VERBS:
        raise unknown_name("verb of a sweep", verb, VERBS)
    refuse_elsewhere(how)
    base = search_base(overrides, read)
    require_optuna()
    config = composed(read, base)
    check_name(config.name)
    if config.gate.tier is GateTier.dryrun:
        raise UserError(
            "A search has no dry runs",
            where="gate.tier=dryrun",
            why="Its points are made while others run on the GPUs",
            do="Leave gate.tier=formula",
        )
    space, against = Feasible(read, base, verb).narrowed()
    assert read.search is not None
    sought = {"search": {one.key: one.plain() for one in space}, "trials": read.search.trials}
    content = {**read.search.content, **sought}
    sweep_of(content, "sweep.json")  # it will be read again, hours later
    outputs = Path(config.paths.outputs).expanduser().absolute()
    paths, sweep = create_sweep(outputs, config.name, verb, base=base, points=content, options=asdict(how))
    console.line(f"A search of {read.search.trials} points{_left_out(against)}")
    return paths, sweep


def refuse_elsewhere(how: RunOptions) -> None:
    """Refuse to search where the runner is not the one that starts the jobs."""
    flag = "--slurm" if how.slurm is not None else "--ray" if how.ray is not None else None
    if flag is not None:
        raise UserError(
            f"A search does not go with {flag}",
            why="Its next point depends on those that are done, and there all are handed over at once",
            do=f"Leave {flag} out, and run the whole search on one node, as one job of the cluster's",
        )


def importances_of(found: Standing, ledger: SearchLedger) -> dict[str, float]:
    """Return what matters, once nothing is left to run; empty before, and where Optuna is not at hand."""
    states = ledger.states()
    if any(now.state in (PLANNED, RUNNING, LOST) for now in states.values()):
        return {}
    try:
        require_optuna()
    except UserError:
        return {}
    return importances(found.search, trials_of(ledger.suggestions, states))


def _left_out(against: Mapping[str, Any]) -> str:
    if not against:
        return ""
    reasons = "; ".join(f"{count:,} {what}" for what, count in against.items())
    return f"; {sum(against.values()):,} combinations of its settings are left out: {reasons}"
