"""How a job is started, watched and where it leaves its files."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP006, UP035, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional

from llmsys_exp.config.schema.kinds import GatePolicy, GateTier, Mirror, OnOom


@dataclass
class LauncherConfig:
    """How workers are started."""

    name: str = "auto"
    """How training starts: `deepspeed` (its runner), `torchrun`, or `local` (one process)."""
    python: Optional[str] = None
    """Interpreter of the environment that holds the engine. None: this one."""
    env: Dict[str, str] = field(default_factory=dict)
    """Environment variables for the worker."""
    timeout_s: Optional[float] = None
    """Stop a worker after this many seconds."""
    gpus: List[int] = field(default_factory=list)
    """Which GPUs of each node, by their number in nvidia-smi. Empty: the first that are visible."""
    hostfile: Optional[str] = None
    """Machines and their slots in DeepSpeed's format, for hardware.nodes > 1 outside of Slurm."""
    master_addr: Optional[str] = None
    """Where ranks meet. None: the first node."""
    master_port: Optional[int] = None
    """Port they meet at. None: a free one."""
    on_oom: OnOom = OnOom.fail
    """After a GPU ran out of memory: fail; `smaller_batch` halves the micro-batch and keeps the global batch;
    `replan` takes the planner's next feasible settings."""
    oom_retries: int = 3
    """How often that is done."""


@dataclass
class GateConfig:
    """The check before a job starts."""

    policy: GatePolicy = GatePolicy.error
    """What to do with a job that the forecast says will not fit."""
    margin_gib: float = 0.25
    """Memory to leave free on each GPU, in GiB."""
    tier: GateTier = GateTier.formula
    """Who decides on what is near the limit: dryrun runs one rank of it on this machine's GPU first."""


@dataclass
class TrackingConfig:
    """Where metrics are sent beside metrics.jsonl."""

    mirrors: List[Mirror] = field(default_factory=list)
    """tensorboard, wandb, mlflow; each needs its package."""
    project: str = "llmsys"
    """Project or experiment they are filed under."""


@dataclass
class PathsConfig:
    """Where files go."""

    outputs: str = "outputs"
    """Run folders go to outputs/<name>/<time>-<hash>."""
    cache: str = ".cache"
    """Converted models and other things that can be made again."""
