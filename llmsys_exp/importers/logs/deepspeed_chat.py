"""DeepSpeed-Chat's `training.log` of step 1: what its script and DeepSpeed print (2023 to March 2026).

With `--print_loss` the script prints the loss of each micro-batch on every rank; in any case perplexity and
loss before training and after each epoch. DeepSpeed prints batch sizes at the start, and rates on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.importers.logs.lines import MOST_ROWS, kept_note, read_lines
from llmsys_exp.importers.logs.logged import LoggedRun

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_LOSS = re.compile(rf"Epoch: (\d+), Step: (\d+), Rank: (\d+), loss = (?:tensor\()?{_NUMBER}")
_PERPLEXITY = re.compile(rf"ppl: {_NUMBER}, loss: {_NUMBER}")
_EVALUATING = re.compile(r"Evaluating perplexity, Epoch (\d+)/(\d+)")
_EPOCH = re.compile(r"Beginning of Epoch (\d+)/(\d+), Total Micro Batches (\d+)")
_ACCUMULATION = re.compile(r"gradient_accumulation_steps \.+ (\d+)")
_RATES = re.compile(rf"\[Rank 0\] step=(\d+), skipped=(\d+), lr=\[{_NUMBER}")
_LATENCY = re.compile(r"Latency: (\d+\.\d+)s, TFLOPs")


def is_own(line: str) -> bool:
    """Return whether a line is one that only this script prints."""
    return bool(_LOSS.search(line) or _PERPLEXITY.search(line) or _EPOCH.search(line))


@dataclass
class _Log:
    """What the lines have told so far."""

    micro_losses: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    evaluation: list[dict[str, Any]] = field(default_factory=list)
    rates: dict[int, float] = field(default_factory=dict)
    epoch: int = 0
    epochs: int = 0
    micro_batches: int | None = None
    accumulation: int = 1
    seconds: float = 0.0
    more: bool = False

    def add(self, line: str) -> None:
        """Take one line."""
        if found := _LOSS.search(line):
            self._add_loss(int(found[1]), int(found[2]), float(found[4]))
        elif found := _PERPLEXITY.search(line):
            self.evaluation.append(
                {"epoch": self.epoch, "loss": float(found[2]), "perplexity": float(found[1])}
            )
        elif found := _EVALUATING.search(line):
            self.epoch, self.epochs = int(found[1]), int(found[2])
        elif found := _EPOCH.search(line):
            self.epochs, self.micro_batches = int(found[2]), int(found[3])
        elif found := _ACCUMULATION.search(line):
            self.accumulation = max(1, int(found[1]))
        elif found := _RATES.search(line):
            self.rates[int(found[1])] = float(found[3])
        elif found := _LATENCY.search(line):
            self.seconds += float(found[1])

    def _add_loss(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) in self.micro_losses or len(self.micro_losses) < MOST_ROWS:
            self.micro_losses.setdefault((epoch, step), []).append(loss)
        else:
            self.more = True

    def steps(self) -> list[dict[str, Any]]:
        """Optimizer steps: the mean over ranks and over the micro-batches that are accumulated.

        Accumulation runs on through the end of an epoch: DeepSpeed counts micro-batches of the whole run.
        """
        losses = [sum(found) / len(found) for _, found in sorted(self.micro_losses.items())]
        whole = len(losses) // self.accumulation
        rows: list[dict[str, Any]] = []
        for number in range(whole):
            part = losses[number * self.accumulation : (number + 1) * self.accumulation]
            row: dict[str, Any] = {"step": number + 1, "loss": sum(part) / len(part)}
            if number + 1 in self.rates:
                row["learning_rate"] = self.rates[number + 1]
            rows.append(row)
        return rows

    def steps_an_epoch(self) -> float | None:
        """Optimizer steps of an epoch."""
        return None if self.micro_batches is None else self.micro_batches / self.accumulation


def read(file: Path) -> LoggedRun:
    """Read losses by step where the script printed them, and its evaluations."""
    log = _Log()
    for line in read_lines(file):
        log.add(line)
    length = log.steps_an_epoch()
    evaluation = [
        {"step": int(one["epoch"] * length) if length is not None else 0, **one} for one in log.evaluation
    ]
    total = int(log.epochs * length) if length is not None else None
    notes = [*kept_note(log.more)]
    if not log.micro_losses:
        notes.append("the run was not started with --print_loss, so only its evaluations are logged")
    return LoggedRun(
        log.steps(), evaluation, file, "deepspeed_chat", 1, total, round(log.seconds, 2) or None, tuple(notes)
    )
