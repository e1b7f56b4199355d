"""What became of somebody else's configuration: settings of ours, what has none, and what differs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Unmapped:
    """One key of the source that no setting of ours stands for."""

    key: str
    value: Any
    why: str
    do: str = ""
    matters: bool = True
    """Whether it changes what is learnt or what memory it takes. False: output folders, logging ..."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(vars(self))


@dataclass(frozen=True)
class Imported:
    """A configuration of another tool, said with our groups and settings."""

    format: str
    """Name of the source format, as `--format` takes it."""
    source: Path
    groups: dict[str, str]
    """Hydra group -> option."""
    settings: dict[str, Any]
    """Dotted setting -> value."""
    unmapped: tuple[Unmapped, ...] = ()
    notes: tuple[str, ...] = ()
    """Where the same words mean something else, and what stood in."""
    logs: tuple[Path, ...] = field(default=())
    """Files beside the source that may hold its logged values, most telling first."""

    def overrides(self) -> list[str]:
        """Return Hydra overrides: groups first, then settings."""
        from llmsys_exp.sweeps.points.settings import write

        pairs: list[tuple[str, Any]] = list(self.groups.items())
        for key, value in self.settings.items():
            if isinstance(value, dict):  # a free mapping is empty before, so that each of its entries is new
                pairs += [(f"+{key}.{name}", one) for name, one in value.items()]
            else:
                pairs.append((key, value))
        return [write(key, value).text for key, value in pairs]

    @property
    def lost(self) -> tuple[Unmapped, ...]:
        """What could not be mapped and matters."""
        return tuple(one for one in self.unmapped if one.matters)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "format": self.format,
            "source": str(self.source),
            "groups": self.groups,
            "settings": self.settings,
            "unmapped": [one.to_dict() for one in self.unmapped],
            "notes": list(self.notes),
            "logs": [str(path) for path in self.logs],
        }
