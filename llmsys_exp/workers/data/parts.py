"""The rows of a job: which file they come from, which of them are learnt and which held out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import DataConfig, DataFormat
from llmsys_exp.workers.data.conversation import Item
from llmsys_exp.workers.data.fingerprint import hash_sources
from llmsys_exp.workers.data.records import DataError, hub_files, read_records
from llmsys_exp.workers.data.rows import empty_data
from llmsys_exp.workers.data.shapes import detect, parse
from llmsys_exp.workers.job import Job

TRAIN, HELDOUT = "train", "heldout"


@dataclass(frozen=True)
class Part:
    """Training rows or held-out rows."""

    name: str
    source: Path | str
    """A file or folder, or the hub id of a data set in the cache."""
    data: DataConfig
    limit: int | None
    share: float
    """Share of the source that is set aside as held-out rows."""
    seed: int

    def describe(self) -> dict[str, Any]:
        """Return what decides which rows these are, the content of the source by its hash."""
        split = {"share": self.share, "seed": self.seed} if self.share else {}
        chosen = {"subset": self.data.subset, "split": self.data.split}
        return {
            "part": self.name if self.share else "all",
            "sha256": self._hash(),
            "limit": self.limit,
            **split,
            **({} if isinstance(self.source, Path) and self.source.is_file() else chosen),
        }

    def read(self) -> tuple[list[Item], DataFormat]:
        """Read the rows, and say how they are laid out.

        Raises:
            DataError: naming file and row of what cannot be used.
        """
        # rows are set aside from the whole, so that it stays the same ones whatever `limit` is
        count = None if self.share else self.limit
        items, kind = read_items(self.source, self.data, limit=count)
        if self.share:
            items = self._chosen(items)[: self.limit]
        return items, kind

    def _chosen(self, items: Sequence[Item]) -> list[Item]:
        if len(items) < 2:
            raise DataError(
                "One row cannot be learnt and held out", where=str(self.source), do="Set data.heldout_split=0"
            )
        wanted = min(len(items) - 1, max(1, round(self.share * len(items))))
        aside = set(random.Random(f"{self.seed}/heldout").sample(range(len(items)), wanted))
        return [one for number, one in enumerate(items) if (number in aside) == (self.name == HELDOUT)]

    def _hash(self) -> str:
        if isinstance(self.source, Path):
            return hash_sources([self.source])
        return hash_sources(hub_files(self.source, subset=self.data.subset, split=self.data.split))


def train_part(job: Job) -> Part:
    """Return where the training rows are."""
    data = job.config.data
    share = 0.0 if _heldout_source(job) else data.heldout_split
    return Part(TRAIN, _train_source(job), data, data.limit, share, job.config.seed)


def heldout_part(job: Job) -> Part | None:
    """Return where the held-out rows are; None where there are none."""
    data, source = job.config.data, _heldout_source(job)
    if source is not None:
        return Part(HELDOUT, source, data, data.heldout_limit, 0.0, job.config.seed)
    if not data.heldout_split:
        return None
    return Part(HELDOUT, _train_source(job), data, data.heldout_limit, data.heldout_split, job.config.seed)


def _train_source(job: Job) -> Path | str:
    source = job.resolved.train_file or job.config.data.train
    if not source:
        raise DataError("There is no training file", where="data.train")
    return source


def _heldout_source(job: Job) -> Path | str | None:
    return job.resolved.heldout_file or job.config.data.heldout


def read_items(
    source: Path | str, data: DataConfig, *, limit: int | None = None
) -> tuple[list[Item], DataFormat]:
    """Read rows in the layout that the settings name, or that the first row has."""
    kind = data.format
    items: list[Item] = []
    for where, value in islice(read_records(source, subset=data.subset, split=data.split), limit):
        if kind is DataFormat.auto:
            kind = detect(value, data.columns, where=where)
        items.append(parse(value, kind, data.columns, where=where))
    if not items:
        raise empty_data(source)
    return items, kind
