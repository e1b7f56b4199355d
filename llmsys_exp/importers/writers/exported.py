"""What is to be written for another tool."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.config.tree import value_at
from llmsys_exp.importers.imported import Unmapped


@dataclass
class Exported:
    """Files, and what of the configuration is not in them."""

    files: dict[Path, str] = field(default_factory=dict)
    """Path -> text; the main file first."""
    unmapped: list[Unmapped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    command: str = ""
    """What starts the other tool on it."""

    @property
    def lost(self) -> list[Unmapped]:
        """What changes what is learnt."""
        return [one for one in self.unmapped if one.matters]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "files": [str(path) for path in self.files],
            "unmapped": [one.to_dict() for one in self.unmapped],
            "notes": self.notes,
            "command": self.command,
        }


class Telling:
    """Collects what of a configuration another tool has no word for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.unmapped: list[Unmapped] = []
        self.notes: list[str] = []

    def lose(self, setting: str, why: str, do: str = "", *, matters: bool = True) -> None:
        """Say that a setting is not carried over."""
        value = to_plain(value_at(self.config, setting))
        self.unmapped.append(Unmapped(setting, value, why, do, matters))

    def lose_unless(
        self, setting: str, expected: Any, why: str, do: str = "", *, matters: bool = True
    ) -> None:
        """Say so where the setting has another value than the one that the other tool takes anyway."""
        if to_plain(value_at(self.config, setting)) != expected:
            self.lose(setting, why, do, matters=matters)
