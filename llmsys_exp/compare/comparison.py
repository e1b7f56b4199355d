"""All that is said of runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.compare.answers import AnswerPair, Differing, compare_answers
from llmsys_exp.compare.curves import Curve, read_curves
from llmsys_exp.compare.evidence import EvidenceRow, evidence_rows
from llmsys_exp.compare.figures import FigureRow, figure_rows
from llmsys_exp.compare.settings import CHOSEN, SettingRow, setting_rows
from llmsys_exp.compare.subjects import Subject
from llmsys_exp.reproduce.drift import Effect, short

MOST_IN_LABEL = 5


@dataclass(frozen=True)
class Comparison:
    """Runs and how they differ."""

    subjects: Sequence[Subject]
    settings: Sequence[SettingRow]
    evidence: Sequence[EvidenceRow]
    figures: Sequence[FigureRow]
    curves: Sequence[Curve]
    pairs: Sequence[AnswerPair]
    differing: Sequence[Differing]
    notes: Sequence[str]

    @property
    def labels(self) -> dict[str, str]:
        """What to call each run beside its curve: by its settings where few differ, else by its name."""
        rows = [row for row in self.settings if row.effect is Effect.NUMBERS and set(row.origins) != {CHOSEN}]
        told = rows if len(rows) <= MOST_IN_LABEL else []
        return {
            one.letter: "  ".join([one.letter, *(_said(row, place) for row in told)])
            if told
            else f"{one.letter}  {one.name}"
            for place, one in enumerate(self.subjects)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "runs": [one.to_dict() for one in self.subjects],
            "settings": [row.to_dict() for row in self.settings],
            "evidence": [row.to_dict() for row in self.evidence],
            "figures": [row.to_dict() for row in self.figures],
            "curves": [curve.to_dict() for curve in self.curves],
            "answers": {
                "pairs": [pair.to_dict() for pair in self.pairs],
                "differing": [one.to_dict() for one in self.differing],
            },
            "notes": list(self.notes),
        }


def _said(row: SettingRow, place: int) -> str:
    return f"{row.key.rpartition('.')[2]}={short(row.values[place], 24)}"


def compare_runs(subjects: Sequence[Subject], *, answers: int) -> Comparison:
    """Compare runs; `answers` is how many answers that differ are shown."""
    curves, log_notes = read_curves(subjects)
    pairs, differing, answer_notes = compare_answers(subjects, answers)
    notes = [f"{one.letter}: {note}" for one in subjects for note in one.notes]
    evidence = evidence_rows(subjects, notes)
    return Comparison(
        subjects=subjects,
        settings=setting_rows(subjects),
        evidence=evidence,
        figures=figure_rows(subjects),
        curves=curves,
        pairs=pairs,
        differing=differing,
        notes=[*notes, *log_notes, *answer_notes],
    )
