"""The keys of a source file, taken one by one, and what they become: nothing that is given goes missing."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError, closest
from llmsys_exp.evidence.secrets import holds_secret
from llmsys_exp.importers.imported import Imported, Unmapped

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_SECRET = re.compile(r"token$|api_key|secret|password|webhook", re.IGNORECASE)
HARMLESS = ""
"""In a table of reasons: the key changes nothing that is learnt or held in memory."""
ASIDE = "~"
"""Before a reason: it changes nothing that is learnt, and somebody may want it all the same."""


class Sheet:
    """Reads a mapping, key by key, and writes settings.

    A key whose value is null or empty counts as left out, as all these tools have it. `rest` accounts for the
    keys that nobody took.
    """

    def __init__(
        self, given: Mapping[str, Any], source: Path, *, model: Mapping[str, Any] | None = None
    ) -> None:
        self.given = {str(key): value for key, value in given.items()}
        self.source = source
        self.shape: Mapping[str, Any] | None = model
        """Hugging Face configuration of the model, once it is known."""
        self.groups: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.notes: list[str] = []
        self.unmapped: list[Unmapped] = []
        self._taken: set[str] = set()

    def has(self, key: str) -> bool:
        """Return whether a key is given and not empty."""
        return self.given.get(key) not in (None, "")

    def take(self, key: str, default: Any = None) -> Any:
        """Return a value and note that it was read."""
        self._taken.add(key)
        return self.given[key] if self.has(key) else default

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false.

        Raises:
            UserError: for anything else.
        """
        value = self.take(key, default)
        text = str(value).lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise self._wrong(key, value, "true or false")

    def any_flag(self, *keys: str) -> bool:
        """Return whether one is on; each is read, so that none of them looks unknown."""
        read = [self.flag(key) for key in keys]
        return any(read)

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return a number; YAML 1.1 reads `1e-4` as a text, which counts as one."""
        value = self.take(key, default)
        if value is None:
            return None
        try:
            found = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not math.isfinite(found):
            raise self._wrong(key, value, "a number")
        return found

    def count(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number."""
        found = self.number(key, default)
        if found is None:
            return None
        if found != int(found):
            raise self._wrong(key, found, "a whole number")
        return int(found)

    def whole(self, key: str, default: int) -> int:
        """Return a whole number, the default where none is given."""
        found = self.count(key, default)
        assert found is not None  # there is a default
        return found

    def word(self, key: str, default: str | None = None) -> str | None:
        """Return a text."""
        value = self.take(key, default)
        if value is None or isinstance(value, (str, int, float)):
            return None if value is None else str(value)
        raise self._wrong(key, value, "a text")

    def names(self, key: str) -> list[str]:
        """Return a list of texts, given as one or as a text with commas."""
        value = self.take(key)
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        if value is None or isinstance(value, (list, tuple)):
            return [str(one) for one in value or ()]
        raise self._wrong(key, value, "names")

    def put(self, setting: str, value: Any) -> None:
        """Give a setting of ours its value."""
        self.settings[setting] = value

    def choose(self, group: str, option: str) -> None:
        """Choose an option of a group of ours."""
        self.groups[group] = option

    def note(self, text: str) -> None:
        """Say where meanings differ."""
        if text not in self.notes:
            self.notes.append(text)

    def tell(self, key: str, why: str, do: str = "", *, value: Any = None, matters: bool = True) -> None:
        """Add a key to what could not be mapped."""
        self._taken.add(key)
        held = self.given.get(key) if value is None else value
        hidden = bool(_SECRET.search(key)) or holds_secret(str(held))
        self.unmapped.append(Unmapped(key, "(not shown)" if hidden else held, why, do, matters))

    def rest(self, reasons: Mapping[str, str], known: Collection[str], *, tool: str) -> None:
        """Account for every key that nobody took.

        Args:
            reasons: key -> why it has no counterpart; `HARMLESS` where that changes nothing.
            known: other keys of the tool, for a closest name.
            tool: what to call it.
        """
        for key, value in self.given.items():
            if key in self._taken or value in (None, ""):
                continue
            if key in reasons:
                self._told(key, value, reasons[key])
            elif key in known:
                self.tell(
                    key,
                    f"llmsys has no such setting of {tool}",
                    "Leave it out, or set what it stands for by hand",
                )
            else:
                near = closest(key, [*reasons, *known, *self._taken])
                self.tell(
                    key, f"not a key of {tool} that is known here", f"Did you mean {near}?" if near else ""
                )

    def _told(self, key: str, value: Any, reason: str) -> None:
        off = value in (False, None, 0, "no", "none", "false", [], {})
        why, _, do = reason.removeprefix(ASIDE).partition("  ")
        matters = bool(why) and not off and not reason.startswith(ASIDE)
        advice = "" if off else do
        self.tell(key, why or "changes nothing that is learnt", advice, value=value, matters=matters)

    def lacks(self, key: str) -> UserError:
        """Describe a key that has to be there, and name one of the file that looks like it."""
        near = get_close_matches(key, self.given, n=1, cutoff=0.8)
        do = f"Did you mean {key} by {near[0]}?" if near else f"Add {key}"
        return UserError("The file names no model", where=str(self.source), do=do)

    def done(self, name: str, *, logs: Collection[Path] = ()) -> Imported:
        """Return the result.

        Raises:
            UserError: when a value would be looked up where the other tool takes it as it stands.
        """
        for setting, value in self.settings.items():
            if "${" in str(value):
                what = f"{setting} would be {value}, which llmsys looks up when it starts"
                raise UserError(what, where=str(self.source), do="Write the value itself into the file")
        return Imported(
            name,
            self.source,
            self.groups,
            self.settings,
            tuple(self.unmapped),
            tuple(self.notes),
            tuple(logs),
        )

    def _wrong(self, key: str, value: Any, wanted: str) -> UserError:
        return UserError(f"{key} is {value!r}", where=str(self.source), why=f"It should be {wanted}")
