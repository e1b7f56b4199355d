"""What the checks look at: the environment, interpreters with their packages, GPUs, folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.packages import installed
from llmsys_exp.launch.gpus import Card, installed_cards, machine_has_gpus

GPU_QUERY = "name,memory.total,memory.used,driver_version"
TIMEOUT_S = 20


@dataclass(frozen=True)
class Look:
    """One look at this machine; what takes time is asked when it is first needed, and once."""

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    """Interpreter of the workers."""
    sglang_python: str = sys.executable
    outputs: Path = Path("outputs")
    cache: Path = Path(".cache")

    @cached_property
    def gpus(self) -> list[dict[str, str]]:
        """The GPUs that nvidia-smi reports; none where it is absent."""
        found = smi(f"--query-gpu={GPU_QUERY}")
        # asked apart: drivers before 2022 refuse the whole question for it
        more = smi("--query-gpu=compute_cap") or [{}] * len(found)
        modes = smi("--query-gpu=compute_mode") or [{}] * len(found)
        return [{**one, **two, **three} for one, two, three in zip(found, more, modes, strict=False)]

    @cached_property
    def cards(self) -> list[Card] | None:
        """The same as CUDA_VISIBLE_DEVICES names them, MIG slices among them; None: not known."""
        return installed_cards()

    @cached_property
    def has_driver(self) -> bool:
        """Whether a driver's device file is there."""
        return machine_has_gpus()

    @cached_property
    def told(self) -> dict[str, Any]:
        """What the workers' interpreter has; `problem` where it does not answer."""
        try:
            return installed(self.python)
        except EvidenceError as error:
            return {"python": None, "packages": {}, "cuda": None, "nccl": None, "problem": str(error)}

    @property
    def packages(self) -> Mapping[str, str]:
        """Packages of the workers' interpreter."""
        return self.told["packages"]


def smi(query: str) -> list[dict[str, str]]:
    """Return what nvidia-smi answers to a query, a row a line; nothing where it does not."""
    keys = query.partition("=")[2].split(",")
    text = output_of(["nvidia-smi", query, "--format=csv,noheader"])
    lines = (text or "").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [dict(zip(keys, row, strict=False)) for row in rows if len(row) == len(keys)]


def output_of(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Return what a program prints; None where it is absent, fails, or takes too long."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
