"""A run as it was recorded: its manifest in today's form, and what lies beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Step
from llmsys_exp.errors import UserError
from llmsys_exp.plan import Choice
from llmsys_exp.reproduce.find import run_folder
from llmsys_exp.reproduce.guard import check_plain
from llmsys_exp.reproduce.shape import check_shape
from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.manifest import is_edited
from llmsys_exp.runs.migrate import read_manifest
from llmsys_exp.runs.paths import RunPaths


@dataclass(frozen=True)
class Logged:
    """What is known of a run."""

    file: Path
    """The manifest, or the record of its start."""
    manifest: Mapping[str, Any]
    paths: RunPaths | None
    """Of its folder; None of a manifest that lies alone."""
    is_edited: bool | None
    """Whether somebody changed the manifest since; None where no hash tells (version 1)."""

    @property
    def id(self) -> str:
        """NAME/FOLDER."""
        known = self.manifest.get("id")
        return str(known) if known else f"{self.file.parent.parent.name}/{self.file.parent.name}"

    @property
    def config(self) -> dict[str, Any]:
        """Settings as they were resolved."""
        return dict(self.manifest["config"])

    @property
    def steps(self) -> list[Step]:
        """What was done."""
        return [Step[name] for name in self.config.get("steps", ["train"])]

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Settings that were chosen or given then, each with its reason; broken entries are left out."""
        known = {one.name for one in fields(Choice)}
        found = self.manifest.get("choices") or ()
        whole = [one for one in found if isinstance(one, Mapping) and set(one) == known]
        plain = [one for one in whole if not isinstance(one["value"], (list, dict))]
        return tuple(Choice(**one) for one in plain if isinstance(one["key"], str))

    @property
    def ended(self) -> bool:
        """Whether the run came to its end."""
        return self.file.name != RunPaths(self.file.parent).start.name

    @property
    def only_answers(self) -> bool:
        """Whether it only answered prompts."""
        return self.steps == [Step.infer]

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the manifest; empty where nothing is known."""
        content = self.manifest.get(name)
        return dict(content) if isinstance(content, Mapping) else {}

    def result(self, step: str) -> dict[str, Any]:
        """Return what a step left; empty where it left nothing."""
        content = self.section("results").get(step)
        return dict(content) if isinstance(content, Mapping) else {}


def read_logged(file: Path) -> Logged:
    """Read a run's record.

    Raises:
        UserError: for a file that is none, cut short, of a newer llmsys, or more than data.
    """
    manifest = read_manifest(file)
    config = manifest.get("config")
    where = str(file)
    if not isinstance(config, Mapping):
        raise UserError("The manifest holds no settings", where=where, do="Name the manifest.json of a run")
    check_shape(manifest, where)
    check_plain(config, where)
    known = {step.name for step in Step}
    steps = config.get("steps", ["train"])
    if not isinstance(steps, list) or not steps or not all(one in known for one in steps):
        raise UserError(
            f"The manifest names steps that there are not: {str(steps)[:80]}",
            where=where,
            do=f"Steps are {', '.join(sorted(known))}",
        )
    folder = run_folder(file)
    paths = RunPaths(folder) if folder is not None else None
    # of the file itself: what a migration adds was not there to be hashed
    return Logged(file, manifest, paths, is_edited(read_json(file)))
