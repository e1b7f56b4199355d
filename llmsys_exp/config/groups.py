"""The Hydra groups on disk: their options, and which file an option stands for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmsys_exp.config.experiment_path import GROUP, experiment_file
from llmsys_exp.config.folders import conf_dir


@dataclass(frozen=True)
class Groups:
    """Groups of one or more configuration folders; earlier folders win."""

    roots: tuple[Path, ...]

    @classmethod
    def shipped(cls, *extra: Path) -> Groups:
        """Return the groups of `conf/`, preceded by those of `extra` folders."""
        return cls((*extra, conf_dir()))

    def names(self) -> list[str]:
        """Return every group, sorted."""
        found = {
            child.name for root in self.roots if root.is_dir() for child in root.iterdir() if child.is_dir()
        }
        return sorted(name for name in found if not name.startswith((".", "_")))

    def options(self, group: str) -> list[str]:
        """Return the options of a group, sorted."""
        found = {file.stem for root in self.roots for file in (root / group).glob("*.yaml")}
        return sorted(found)

    def file(self, group: str, option: str) -> Path | None:
        """Return the file that holds an option; an empty group stands for the root."""
        for root in self.roots:
            path = root / group / f"{option.removesuffix('.yaml')}.yaml"
            if path.is_file():
                return path
        return experiment_file(option) if group == GROUP else None
