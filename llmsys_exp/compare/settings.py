"""Settings that differ between runs, with where each value comes from and what it may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.compare.subjects import Subject
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.report.pages.run_settings import CHOSEN, DEFAULT, plain_text, settings_rows
from llmsys_exp.reproduce.drift import Effect
from llmsys_exp.reproduce.effects import of_setting
from llmsys_exp.runs.resume_rules import flat
from llmsys_exp.runs.told import group, part

UNKNOWN = "unknown"
_ANSWERS_ONLY = ("checkpoint", "zero", "offload", "export", "tracking", "training", "method")
_TRAINS_ONLY = ("inference",)


@dataclass(frozen=True)
class SettingRow:
    """One setting that is not the same in all runs."""

    key: str
    effect: Effect
    """What another value may change."""
    values: tuple[str, ...]
    """A run each, in order."""
    origins: tuple[str, ...]
    """`chosen` by the planner, `asked` on the command line, `set` by a file, `default`, or `unknown`."""
    reasons: tuple[str, ...]
    """Why it was chosen; empty of values that nobody chose."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**vars(self), "effect": self.effect.words}


def setting_rows(subjects: Sequence[Subject]) -> list[SettingRow]:
    """Return what differs, most serious first; a run that recorded no settings is unknown in all of it."""
    tables = [_table(one) for one in subjects]
    defaults = {key: plain_text(value) for key, value in flat(to_plain(Config())).items()}
    unread, hashed = _unread(subjects), _hashed(subjects)
    rows: list[SettingRow] = []
    for key in dict.fromkeys(key for table in tables for key in table):
        if key.partition(".")[0] in unread:
            continue
        cells = [_cell(key, table, defaults) for table in tables]
        if len({cell[0] for cell in cells if cell[1] != UNKNOWN}) > 1:
            values, origins, reasons = zip(*cells, strict=True)
            effect = Effect.NOTHING if key in hashed else of_setting(key).effect
            rows.append(SettingRow(key, effect, values, origins, reasons))
    return sorted(rows, key=lambda row: (-row.effect, row.key))


def _table(subject: Subject) -> Mapping[str, Mapping[str, str]]:
    if not subject.told.record["config"]:
        return {}
    rows: list[dict[str, str]] = part(lambda: settings_rows(subject.told.record), [])
    return {row["key"]: row for row in rows}


def _cell(
    key: str, table: Mapping[str, Mapping[str, str]], defaults: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return value, origin and reason; a setting that has come since leaves things as its default does."""
    if not table:
        return "?", UNKNOWN, ""
    row = table.get(key)
    if row is None:
        return defaults.get(key, "none"), DEFAULT, ""
    return row["value"], row["from"], row["why"] if row["from"] == CHOSEN else ""


def _hashed(subjects: Sequence[Subject]) -> set[str]:
    """Return settings that name files whose content every run has on record: it is compared by itself."""
    roles = {"train": "data.train", "heldout": "data.heldout", "prompts": "inference.prompts"}
    files = [group(one.told.record, "data", "files") for one in subjects]
    keys = {key for role, key in roles.items() if all(group(each, role).get("sha256") for each in files)}
    if all(group(one.told.record, "model", "files") for one in subjects):
        keys |= {"model.path", "model.package"}
    return keys


def _unread(subjects: Sequence[Subject]) -> set[str]:
    """Return the sections of settings that no step of any of the runs reads."""
    steps = set[str]().union(*(one.steps for one in subjects))
    if steps == {"infer"}:
        return set(_ANSWERS_ONLY)
    return set() if "infer" in steps else set(_TRAINS_ONLY)
