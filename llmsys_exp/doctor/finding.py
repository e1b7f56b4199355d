"""What a check says: one line, and the command that mends it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"
"""A problem would stop a run; a note would not, but is worth knowing."""


@dataclass(frozen=True)
class Finding:
    """One line."""

    subject: str
    name: str
    """Of what was looked at; stays the same between releases."""
    state: str
    said: str
    fix: str = ""
    """A command or a setting."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Reporter:
    """Makes the findings of one subject."""

    subject: str

    def ok(self, name: str, said: str) -> Finding:
        """All is well."""
        return Finding(self.subject, name, OK, said)

    def note(self, name: str, said: str, fix: str = "") -> Finding:
        """Worth knowing."""
        return Finding(self.subject, name, NOTE, said, fix)

    def problem(self, name: str, said: str, fix: str) -> Finding:
        """Would stop a run."""
        return Finding(self.subject, name, PROBLEM, said, fix)

    def either(self, is_problem: bool, name: str, said: str, fix: str) -> Finding:
        """A problem where it would stop a run on this machine, else a note."""
        return (self.problem if is_problem else self.note)(name, said, fix)
