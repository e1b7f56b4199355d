"""Rows that GPTQ looks at while it rounds, and rows that the result is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import DataFormat
from llmsys_exp.workers.data.example import Example
from llmsys_exp.workers.data.load import load_examples
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.scores import NO_SCORE

MOST_MEASURED = 128


@dataclass(frozen=True)
class Rows:
    """Tokenised rows, and where they come from."""

    calibration: Sequence[Example]
    measured: Sequence[Example]
    measured_on: str
    """`held-out rows`, or `calibration rows` where nothing is held out."""

    @property
    def calibration_tokens(self) -> int:
        """All tokens of the calibration rows."""
        return sum(len(one.ids) for one in self.calibration)


def load_rows(job: Job, tokenizer: Any) -> Rows:
    """Read calibration rows (`export.gptq.calibration`, else the training rows) and held-out rows."""
    loaded = load_examples(_asked(job), tokenizer)
    calibration = list(loaded.train)[: job.config.export.gptq.rows]
    heldout = list(loaded.heldout)[:MOST_MEASURED]
    if heldout:
        return Rows(calibration, heldout, "held-out rows")
    return Rows(calibration, calibration[:MOST_MEASURED], "calibration rows")


def _asked(job: Job) -> Job:
    """The job with the data settings of the calibration: never packed, of its own length and number."""
    settings = job.config.export.gptq
    data = replace(
        job.config.data, limit=settings.rows, max_length=settings.max_length, packing=False, score=NO_SCORE
    )
    # the parent looks for held-out rows only where training evaluates
    heldout = job.resolved.heldout_file or _file(job.config.data.heldout)
    resolved = replace(job.resolved, heldout_file=heldout)
    if settings.calibration is not None:
        data = replace(data, format=DataFormat.auto, heldout_split=0.0)
        resolved = replace(resolved, train_file=_file(settings.calibration))
    training = replace(job.config.training, evaluate=True)
    return replace(job, config=replace(job.config, data=data, training=training), resolved=resolved)


def _file(text: str | None) -> Path | None:
    path = shipped_path(text).absolute() if text else None
    return path if path is not None and path.exists() else None
