"""`hydra/launcher=llmsys_lease`: each job of a multirun in a process of its own, with GPUs of its own.

Every Hydra program reads this at its start where it is installed, so what does the work is imported later.

No `from __future__ import annotations`: Hydra runs this file before it is in `sys.modules`, where dataclasses
would look up what a text stands for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class LeaseConfig:
    """Settings below `hydra.launcher`; what they mean: `llmsys_exp.sweeps.launcher.options`."""

    _target_: str = "hydra_plugins.llmsys_lease.launcher.LeaseLauncher"
    gpus_per_job: int | None = None
    jobs: int | None = None
    timeout_s: float | None = None
    fail_fast: bool = False


class LeaseLauncher(Launcher):
    """Hands everything to `llmsys_exp.sweeps.launcher`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._program: tuple[HydraContext, TaskFunction, DictConfig] | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take in the program whose jobs are launched."""
        self._program = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs, and return how each ended, in their order."""
        from llmsys_exp.sweeps.launcher.launch import launch

        assert self._program is not None  # Hydra calls setup first
        return launch(self._settings, self._program, job_overrides, initial_job_idx)


ConfigStore.instance().store(
    group="hydra/launcher", name="llmsys_lease", node=LeaseConfig, provider="llmsys_lease"
)
