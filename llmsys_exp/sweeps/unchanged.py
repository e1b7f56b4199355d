"""Whether the files of a sweep are there, and as they were written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.sweeps.ledger.lines import decode

DIGITS = 16


def fingerprint(content: bytes) -> str:
    """Return what the first line of a ledger says of `sweep.json`."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def first_line(ledger: Path) -> dict[str, Any]:
    """Return what the first line of a ledger says, which is there before `sweep.json`; empty if damaged.

    Raises:
        UserError: when there is none: the points would all look as if they had never run.
    """
    try:
        with ledger.open("rb") as stream:
            line = stream.readline()
        if line.endswith(b"\n"):
            return decode(line[:-1]) or {}
        why = "It is empty"
    except OSError as error:
        why = error.strerror or str(error)
    raise UserError(
        "The ledger of this sweep is gone, and with it which points are done",
        where=str(ledger),
        why=why,
        do="Put the file back from a copy, or begin the sweep anew; finished runs stay as they are",
    )


def check_unchanged(asked: Path, content: bytes, told: dict[str, Any]) -> None:
    """Refuse a `sweep.json` that somebody has changed; a ledger of old says nothing of it.

    Raises:
        UserError: saying what to do.
    """
    if told.get("asked") in (None, fingerprint(content)):
        return
    raise UserError(
        "The sweep is not as it was written",
        where=str(asked),
        why="The file was changed after the sweep had begun, so its points may be others than those that ran",
        do="Put the file back from a copy, or begin a new sweep; finished runs stay as they are",
    )
