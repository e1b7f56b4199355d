"""A piece of evidence that cannot be had: it becomes a note in the record, never the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class EvidenceError(Exception):
    """Why a piece is missing, in a few words."""


def noted(notes: list[str], what: str, find: Callable[[], T], otherwise: T) -> T:
    """Return a piece of evidence; where it cannot be had, `otherwise`, with a note that says why."""
    try:
        return find()
    except EvidenceError as error:
        note = f"{what}: {error}"
    except Exception as error:  # whatever is wrong with a driver or a repository, the run goes on
        note = f"{what}: {type(error).__name__}: {error}"
    if note not in notes:
        notes.append(note)
    return otherwise
