"""What became of points whose process is gone, and which points may be started again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from llmsys_exp.errors import UserError
from llmsys_exp.launch.failure import DISK, KILLED
from llmsys_exp.runs.migrate import has_manifest
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import (
    DONE,
    FAILED,
    LOST,
    PLANNED,
    PRUNED,
    RUNNING,
    SKIPPED,
    Ledger,
    PointState,
)
from llmsys_exp.sweeps.running.processes import end_point, is_alive
from llmsys_exp.sweeps.search.metrics import values_told

AGAIN = frozenset({"stopped", KILLED, DISK})
"""Failures that say nothing of the point: `resume` starts such points again."""


def is_gone(now: PointState) -> bool:
    """Whether the ledger calls a point running and its process is no more."""
    return now.state == RUNNING and is_alive(now.fields) is False


def settle(sweep: Sweep, ledger: Ledger, number: int, *, failure: tuple[str, str] | None = None) -> None:
    """Write down what became of a point whose process is gone; nothing of it runs on after that.

    Args:
        sweep: the sweep.
        ledger: its ledger.
        number: of the point.
        failure: kind and words, where it is known how the process ended.
    """
    now = ledger.states()[number]
    if not is_gone(now):
        return
    end_point(sweep.id, number)
    folder = now.fields.get("folder")
    if folder is not None and has_manifest(RunPaths(Path(folder))):
        # it was killed between its last file and the word of it
        ledger.move(number, DONE, attempt=now.attempt, found=True, **values_told(sweep.search, folder))
    elif now.fields.get("pruning") is not None:
        ledger.move(number, PRUNED, attempt=now.attempt, **now.fields["pruning"])
    elif failure is not None:
        ledger.move(number, FAILED, attempt=now.attempt, kind=failure[0], what=failure[1])
    else:
        ledger.move(number, LOST, attempt=now.attempt)


def end_gone(ledger: Ledger, number: int) -> None:
    """Write down what became of a point whose task is gone without a word."""
    now = ledger.states()[number]
    folder = now.fields.get("folder")
    finished = folder is not None and has_manifest(RunPaths(Path(folder)))
    told = {"found": True} if finished else {}
    ledger.move(number, DONE if finished else LOST, attempt=now.attempt, **told)


def settle_all(sweep: Sweep, ledger: Ledger) -> None:
    """Settle every point whose process is gone."""
    for number, now in ledger.states().items():
        if is_gone(now):
            settle(sweep, ledger, number)


def found_full(states: Mapping[int, PointState], started: Collection[int]) -> PointState | None:
    """Return a point of those started that found the disk full: the others would end like it."""
    chosen = (states[number] for number in started)
    return next((now for now in chosen if now.state == FAILED and now.fields.get("kind") == DISK), None)


def check_disk(states: Mapping[int, PointState], started: Collection[int]) -> None:
    """Refuse to end in silence when points are left because the disk was full.

    Raises:
        UserError: naming the point that found it full.
    """
    full = found_full(states, started)
    if full is not None and any(now.state in (PLANNED, LOST) for now in states.values()):
        raise UserError(
            "The disk is full: no further point was started",
            where=f"point {full.number}: {full.fields.get('what')}",
            do="Free some space; `llmsys sweep resume` goes on with all that is left",
        )


def has_kind(now: PointState, kinds: Collection[str]) -> bool:
    """Whether a point failed in one of some ways, or is skipped and `skipped` is among them."""
    if now.state == FAILED:
        return now.fields.get("kind") in kinds
    return now.state == SKIPPED and SKIPPED in kinds


def reopen(
    ledger: Ledger, kinds: Collection[str], settings: Sequence[str] = (), *, leave: Collection[int] = ()
) -> list[int]:
    """Plan points of some kinds again, but those to `leave`, with further settings; return their numbers."""
    chosen = [n for n, now in ledger.states().items() if has_kind(now, kinds) and n not in leave]
    told = {"set": list(settings)} if settings else {}
    ledger.move_all([(number, PLANNED, told) for number in chosen])
    return chosen
