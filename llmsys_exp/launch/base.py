"""What a launcher is: a name, and the command that starts the ranks of one training job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from llmsys_exp.launch.nodes import Nodes

TRAIN_MODULE = "llmsys_exp.workers.train"


@dataclass(frozen=True)
class TrainJob:
    """What a launcher needs to know of a training job."""

    folder: Path
    python: str
    device: str
    ranks: int
    """Processes on each node, one a GPU."""
    port: int
    """Where the ranks meet; free when the job was written."""
    gpus: tuple[str, ...] = ()
    """GPUs of each node as CUDA_VISIBLE_DEVICES names them. Empty on the CPU."""
    nodes: Nodes = field(default_factory=Nodes)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that other nodes need as well."""
    module: str = TRAIN_MODULE
    """What each rank runs."""

    @property
    def indices(self) -> tuple[int, ...]:
        """The GPUs as numbers; empty where they are not all named by number."""
        return tuple(int(one) for one in self.gpus) if all(one.isdigit() for one in self.gpus) else ()


class Launcher(Protocol):
    """Builds the command line of a training job."""

    name: str
    hides: tuple[str, ...]
    """Variables of our environment that must not reach it."""

    def command(self, job: TrainJob) -> list[str]:
        """Return the arguments of the process to start.

        Raises:
            UserError: when this launcher cannot start the job.
        """
        ...

    def env(self, job: TrainJob) -> dict[str, str]:
        """Return environment variables the ranks need beside the common ones."""
        ...
