"""`llmsys sweep retry`: failed and skipped points again, perhaps with other settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llmsys_exp.cli.options import Options, take_repeated, take_values
from llmsys_exp.cli.sweep_go import check_here, console_of, go, opened
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.launch import failure
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import FAILED, SKIPPED, PointState
from llmsys_exp.sweeps.ledger.settle import has_kind, reopen
from llmsys_exp.sweeps.points.settings import one_setting

SHOWN = 10
"""Points that stay skipped and are named."""


def retry(rest: list[str], options: Options) -> int:
    """Plan failed points again, perhaps with other settings, and run them."""
    settings, rest = take_repeated(rest, "--set", "KEY=VALUE")
    values, rest = take_values(rest, {"--only": "KIND"})
    paths, sweep, how, detach = opened(rest, "retry")
    _check_settings(settings)
    ledger = sweep.ledger(paths)
    states = ledger.states().values()
    there = {str(now.fields.get("kind")) for now in states if now.state == FAILED}
    there |= {SKIPPED for now in states if now.state == SKIPPED}
    wanted = set(values["--only"].split(",")) if "--only" in values else there - {SKIPPED}
    _check_kinds(wanted, there)
    # what is in the ledger stays: settings that lead nowhere must not get there
    again = {
        number: PointState(number, overrides=(*now.overrides, *settings))
        for number, now in ledger.states().items()
        if has_kind(now, wanted)
    }
    console = console_of(options)
    skipped = {n: now for n, now in again.items() if ledger.states()[n].state == SKIPPED}
    kept = _still_skipped(sweep, skipped, console.line)
    check_here(sweep, how, {number: now for number, now in again.items() if number not in kept})
    numbers = reopen(ledger, wanted, settings, leave=kept)
    for number, why in list(kept.items())[:SHOWN]:
        console.line(f"Point {number} stays skipped: {why}")
    if len(kept) > SHOWN:
        console.line(f"{len(kept) - SHOWN} more stay skipped")
    if kept and not numbers:
        console.line("Nothing is planned again; --set gate=warn runs them all the same")
    elif not numbers:
        kinds = f"; there are {', '.join(sorted(there))}" if there else ""
        console.line(f"No point has failed in that way{kinds}")
    else:
        console.line(f"Planned again: {', '.join(map(str, numbers))}")
    return go(paths, sweep, how, options, detach=detach)


def _still_skipped(
    sweep: Sweep, skipped: Mapping[int, PointState], tell: Callable[[str], None]
) -> dict[int, str]:
    """Ask the gate about skipped points."""
    if not skipped:
        return {}
    from llmsys_exp.sweeps.gate.again import still_skipped  # slow to import, and seldom needed

    return still_skipped(sweep, skipped, tell=tell)


def _check_settings(settings: Sequence[str]) -> None:
    """Refuse what is no setting of one value; `resume` alone tells a point where its run lies."""
    from llmsys_exp.config.compose import find_problems

    for text in settings:
        key, equals, _ = text.partition("=")
        if not equals or key.strip() == "resume":
            raise UserError(f"--set {text} is no setting of a point", do="Write --set KEY=VALUE")
    problems = find_problems(list(settings)) if settings else []
    if problems:
        raise ConfigError(problems)
    for text in settings:
        one_setting(text)


def _check_kinds(wanted: set[str], there: set[str]) -> None:
    """Refuse what is no kind of failure; workers have some of their own, which `there` names."""
    known = [failure.OOM_GPU, failure.OOM_HOST, failure.CONFIG, failure.DATA, failure.DISK, failure.KILLED]
    known += [failure.NCCL, failure.TIMEOUT, failure.BUG, failure.OTHER, "stopped", "does_not_fit", SKIPPED]
    for kind in sorted(wanted - set(known) - there):
        raise unknown_name("kind of failure", kind, known, where="--only", limit=len(known))
