"""Errors a user can act on, and the exit code each one ends the program with.

Every message answers four questions in this order: what is wrong, where, why it matters, what to do.
The parts travel as fields; the text is built here and nowhere else. Any other exception is a bug of
ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

EXIT_OK = 0
EXIT_USER = 2
EXIT_DOES_NOT_FIT = 3
EXIT_JOB_FAILED = 4
EXIT_NOT_REPRODUCED = 5
EXIT_STOPPED = 6
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Something the user can mend: printed as one short paragraph, without a traceback."""

    exit_code = EXIT_USER
    kind = "config"
    """Kind of failure, as the ledger of a sweep tells it."""

    def __init__(self, what: str, *, where: str = "", why: str = "", do: str = "") -> None:
        self.what, self.where, self.why, self.do = what, where, why, do
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.what.removesuffix('.')} ({self.where})" if self.where else self.what
        parts = (head, self.why, self.do)
        return "  ".join(
            part if part.endswith((".", "?", "!", ":")) else f"{part}." for part in parts if part
        )


class ConfigError(UserError):
    """One or more settings are wrong; all of them are reported together."""

    def __init__(self, problems: Sequence[UserError | str]) -> None:
        self.problems = [str(problem) for problem in problems]
        super().__init__(self._text())

    def _text(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = [f"{len(self.problems)} settings need a change:"]
        return "\n".join(lines + [f"  {i}. {problem}" for i, problem in enumerate(self.problems, start=1)])

    def __str__(self) -> str:
        return self._text()


class DoesNotFit(UserError):
    """The plan says that the job would run out of memory, and the gate says not to start it."""

    exit_code = EXIT_DOES_NOT_FIT
    kind = "does_not_fit"


class JobError(UserError):
    """A worker process failed. Carries the kind of failure and the tail of its log."""

    exit_code = EXIT_JOB_FAILED

    details: Mapping[str, Any] = {}
    """What the worker measured when it failed."""

    def __init__(
        self, what: str, *, kind: str = "other", log_tail: str = "", where: str = "", do: str = ""
    ) -> None:
        self.kind, self.log_tail = kind, log_tail
        super().__init__(what, where=where, do=do)


def closest(name: str, valid: Iterable[str]) -> str:
    """Return the valid name most like `name`, or an empty string when none is near."""
    matches = get_close_matches(name, list(valid), n=1, cutoff=0.55)
    return matches[0] if matches else ""


def unknown_name(
    kind: str, name: str, valid: Sequence[str], *, where: str = "", limit: int = 12
) -> UserError:
    """Describe a name that is in no table: the closest one, then the list of valid ones."""
    near = closest(name, valid)
    shown = ", ".join(sorted(valid)[:limit]) + (", ..." if len(valid) > limit else "")
    hint = f"Did you mean {near}?  " if near else ""
    return UserError(f"{name!r} is not a known {kind}", where=where, do=f"{hint}Known: {shown}")
