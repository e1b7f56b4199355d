"""All that is said of runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.compare.answers import AnswerPair, Differing, compare_answers
from llmsys_exp.compare.curves import Curve, read_curves
from llmsys_exp.compare.evidence import EvidenceRow, evidence_rows
from llmsys_exp.compare.figures import FigureRow, figure_rows
from llmsys_exp.compare.settings import SettingRow, setting_rows
from llmsys_exp.compare.subjects import Subject


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


def compare_runs(subjects: Sequence[Subject], *, answers: int) -> Comparison:
    """Compare runs; `answers` is how many answers that differ are shown."""
    curves, log_notes = read_curves(subjects)
    pairs, differing, answer_notes = compare_answers(subjects, answers)
    notes = [f"{one.letter}: {note}" for one in subjects for note in one.notes]
    return Comparison(
        subjects=subjects,
        settings=setting_rows(subjects),
        evidence=evidence_rows(subjects),
        figures=figure_rows(subjects),
        curves=curves,
        pairs=pairs,
        differing=differing,
        notes=[*notes, *log_notes, *answer_notes],
    )
