"""DeepSpeed's own runner: one process a GPU on this machine, siblings killed when one fails."""

from __future__ import annotations

from llmsys_exp.launch.base import TRAIN_MODULE, TrainJob


class DeepSpeedLauncher:
    """Starts `python -m deepspeed.launcher.runner`, so that no console script need be on PATH."""

    name = "deepspeed"

    def command(self, job: TrainJob) -> list[str]:
        """Return the runner's command line."""
        return [
            job.python,
            *("-m", "deepspeed.launcher.runner"),
            *("--num_gpus", str(job.ranks)),
            "--no_local_rank",
            *("--master_port", str(job.port)),
            *("--module", TRAIN_MODULE, str(job.folder)),
        ]

    def env(self, job: TrainJob) -> dict[str, str]:
        """Return nothing: the runner sets the variables of each rank."""
        return {}
