"""The ledger of a search: points are added one by one, and suggestions that were turned down stand in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.manifest import utc_now
from llmsys_exp.sweeps.ledger.ledger import PLANNED, VERSION, Ledger, PointState


@dataclass(frozen=True)
class Suggestion:
    """One suggestion of a search.

    Attributes:
        params: setting -> value, as far as the search chose it.
        number: of the point; None where it was turned down.
        what: why it was turned down.
        kind: the same without figures.
        excess: the share by which it needs more than there is; 1 where that is not known.
    """

    params: Mapping[str, Any]
    number: int | None = None
    what: str = ""
    kind: str = ""
    excess: float = 1.0


class SearchLedger(Ledger):
    """A ledger that begins without points."""

    ended: Mapping[str, Any] | None
    """Why a search that is short of points adds none: `what`, and whether it is `complete` so."""

    def __init__(self, path: Path, sweep: str, on_told: Callable[[Mapping[str, Any]], None]) -> None:
        """Open a ledger; the file need not be there yet.

        Args:
            path: the file.
            sweep: identity of the sweep.
            on_told: takes each entry that adds a point, or asks for further ones.
        """
        self._on_told = on_told
        super().__init__(path, sweep, 0)

    @property
    def suggestions(self) -> Sequence[Suggestion]:
        """What the search has come up with, in order, as far as this was read."""
        return self._suggestions

    def add(self, number: int, added: Mapping[str, Any]) -> bool:
        """Add a point that is planned; return whether `number` was still free.

        Args:
            number: the next one.
            added: `key`, `overrides`, `params` and `forecast` of the point.
        """
        return self._enter({"point": number, "state": PLANNED, "added": added}, number)

    def reject(self, rejected: Mapping[str, Any]) -> None:
        """Note a suggestion that becomes no point: `params`, `what`, `kind` and `excess` of `Suggestion`."""
        self._enter({"rejected": rejected})

    def end(self, what: str, *, complete: bool) -> None:
        """Note why the search adds no further points; `complete`: because there are none."""
        self._enter({"ended": {"what": what, "complete": complete}})

    def extend(self, trials: int) -> None:
        """Note that the search is to have so many points now."""
        self._enter({"trials": trials})

    def _enter(self, told: Mapping[str, Any], number: int | None = None) -> bool:
        with self._locked() as descriptor:
            if number is not None and number != len(self._states) + 1:
                return False
            entry = {"v": VERSION, "t": utc_now(), **told}
            self._write(descriptor, entry)
            os.fdatasync(descriptor)
            self._take(entry)
        return True

    def _take(self, entry: dict[str, Any] | None) -> None:
        told = entry or {}
        if told.get("v") == VERSION and {"added", "rejected", "ended", "trials"} & set(told):
            self.ended = told.get("ended")
            if "trials" in told:
                self._on_told(told)
            if "rejected" in told:
                self._suggestions.append(Suggestion(**told["rejected"]))
            if "added" not in told:
                return
            self._take_added(told, told["point"])
        super()._take(entry)

    def _take_added(self, entry: Mapping[str, Any], number: int) -> None:
        if number != len(self._states) + 1:
            raise UserError(
                f"The ledger adds point {number} after {len(self._states)}",
                where=str(self.path),
                do="Look whether the ledger was changed, or put it back from a copy",
            )
        self._on_told(entry)
        self._suggestions.append(Suggestion(entry["added"]["params"], number))
        self._states[number] = PointState(number)

    def _forget(self) -> None:
        super()._forget()
        self._suggestions: list[Suggestion] = []
        self.ended = None
