"""`llmsys runs prune`: say which run folders would go and how much that frees; `--yes` removes them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from llmsys_exp.browse.filters import Filters, read_time
from llmsys_exp.browse.needs import find_needs
from llmsys_exp.browse.points import find_points
from llmsys_exp.browse.prune import Doomed, Kept, Order, choose, leftovers, remove, spare_newest
from llmsys_exp.browse.sizes import size_of
from llmsys_exp.cli.options import Options, take_values
from llmsys_exp.cli.runs import take_filters, take_folder
from llmsys_exp.errors import EXIT_OK, EXIT_USER, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.report.pages.run_facts import size_text
from llmsys_exp.runs.listing import FoundRun, find_runs
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import FAILED

_SWITCHES = ("--failed", "--checkpoints-only", "--needed", "--yes")
_VALUES = {"--keep": "N", "--older": "30d"}
MOST_KEPT = 12
HELP = """llmsys runs prune - say which run folders would go; with --yes, remove them

Usage:  llmsys runs prune [FOLDER] [--keep N] [--older 30d] [--failed] [filters] [--checkpoints-only] [--yes]

What goes: runs for which all of these hold; at least one has to be given
  --older 30d          begun before then
  --failed             ended with a failure
  --state, --name, --where, --since     as `llmsys runs` takes them
  --keep N             not one of the newest N of its experiment, of those for which the rest holds

  --checkpoints-only   only checkpoints/ of these runs; not of runs that could go on from them
  --needed             also what a sweep's ledger or another run needs
  --yes                do it; without it nothing is touched
A run that runs is never touched, nor is what lies outside of FOLDER or behind a link.
"""


@dataclass(frozen=True)
class _Found:
    doomed: list[Doomed]
    kept: list[Kept]
    left: list[Path]
    """Half-removed by a prune that was killed."""

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.doomed) + sum(map(size_of, self.left))


def run(rest: Sequence[str], options: Options) -> int:
    """Say what would go, or remove it."""
    switches = {text for text in rest if text in _SWITCHES}
    rest = [text for text in rest if text not in _SWITCHES]
    filters, rest = take_filters(rest)
    values, rest = take_values(rest, _VALUES)
    valid = [*_VALUES, *_SWITCHES, "--state", "--name", "--where", "--since"]
    outputs = take_folder(
        rest, valid, "llmsys runs prune"
    ).resolve()  # from here on no `..` and no link above
    root = outputs.parent if _is_experiment(outputs) else outputs
    order = Order(
        checkpoints="--checkpoints-only" in switches,
        needed="--needed" in switches,
        unfinished="--failed" in switches or bool(filters.states),
    )
    runs = find_runs(outputs)
    chosen = _meant(runs, filters, values, failed="--failed" in switches)
    # what needs a run may be of another experiment
    others = runs if root == outputs else find_runs(root)
    needs = {} if order.needed or not chosen else find_needs(others, find_points(root))
    found = _Found(*choose(chosen, needs, order, outputs), leftovers(outputs))
    problems: list[str] = []
    if "--yes" in switches:
        found, problems = _remove_all(found, outputs)
    _tell(found, problems, options, done="--yes" in switches)
    return EXIT_USER if problems else EXIT_OK


def _meant(
    runs: Sequence[FoundRun], filters: Filters, values: dict[str, str], *, failed: bool
) -> list[FoundRun]:
    if failed:
        if filters.states:
            raise UserError("--failed and --state say two things", do="Keep one")
        filters = replace(filters, states=(FAILED,))
    older = values.get("--older")
    if older is not None:
        filters = replace(filters, before=read_time(older, "--older", datetime.now()))
    keep = values.get("--keep")
    if keep is not None and not keep.isdecimal():
        raise UserError(f"--keep {keep} is no number of runs")
    if keep is None and filters == Filters():
        do = "Give --keep N, --older 30d, --failed or a filter"
        raise UserError("prune needs to know what may go", do=do)
    chosen = filters.choose(runs)
    return chosen if keep is None else spare_newest(chosen, int(keep))


def _is_experiment(folder: Path) -> bool:
    """Whether a folder holds runs itself, and not experiments with runs."""
    return any(RunPaths(one).is_run for one in folder.iterdir()) if folder.is_dir() else False


def _remove_all(found: _Found, outputs: Path) -> tuple[_Found, list[str]]:
    """Return what was removed, and why the rest was not."""
    done: list[Doomed] = []
    problems: list[str] = []
    for one in found.doomed:
        try:
            done += [one] if remove(one, outputs) else []
        except UserError as error:
            problems.append(str(error))
    for folder in found.left:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(found, doomed=done), problems


def _tell(found: _Found, problems: Sequence[str], options: Options, *, done: bool) -> None:
    if options.json:
        content = {
            "done": done,
            "bytes": found.size_bytes,
            "goes": [{"folder": str(one.folder), "bytes": one.size_bytes} for one in found.doomed],
            "stays": [{"folder": str(one.run.paths.folder), "why": one.why} for one in found.kept],
            "leftovers": [str(one) for one in found.left],
            "problems": list(problems),
        }
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return
    console = Console.on(sys.stdout)
    if found.doomed:
        rows = [
            (one.run.state, size_text(one.size_bytes), os.path.relpath(one.folder)) for one in found.doomed
        ]
        console.table(rows, header=("state", "size", "goes"), right=(1,))
    if found.kept:
        rows = [(one.run.id, one.why) for one in found.kept[:MOST_KEPT]]
        console.table(rows, header=("stays", "because"))
        if len(found.kept) > MOST_KEPT:
            console.line(f"  and {len(found.kept) - MOST_KEPT} more")
        if any(one.is_needed for one in found.kept):
            console.line(console.style("  --needed takes those that a sweep or a run needs, too", "dim"))
    for problem in problems:
        console.line(console.style(f"  {problem}", "red"))
    count = len(found.doomed) + len(found.left)
    size = size_text(found.size_bytes)
    if not found.doomed and not found.left and not problems:
        console.line("Nothing to remove")
    elif done:
        console.line(f"Removed: {count} folders, {size}")
    else:
        console.line(f"Would remove {count} folders, {size}.  --yes does it")
