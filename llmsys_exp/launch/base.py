"""What a launcher is: a name, and the command that starts the ranks of one training job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TRAIN_MODULE = "llmsys_exp.workers.train"


@dataclass(frozen=True)
class TrainJob:
    """What a launcher needs to know of a training job."""

    folder: Path
    python: str
    device: str
    ranks: int
    """Processes on this node, one a GPU."""
    port: int
    """Where the ranks meet; free when the job was written."""


class Launcher(Protocol):
    """Builds the command line of a training job."""

    name: str

    def command(self, job: TrainJob) -> list[str]:
        """Return the arguments of the process to start."""
        ...

    def env(self, job: TrainJob) -> dict[str, str]:
        """Return environment variables the ranks need beside the common ones."""
        ...
