"""One process, no launcher: the quickest start for a single GPU or for the CPU."""

from __future__ import annotations

from llmsys_exp.errors import UserError
from llmsys_exp.launch.base import TRAIN_MODULE, TrainJob


class LocalLauncher:
    """Starts the training worker directly."""

    name = "local"

    def command(self, job: TrainJob) -> list[str]:
        """Return the worker's command line.

        Raises:
            UserError: when the job wants more than one rank.
        """
        if job.ranks != 1:
            raise UserError(
                f"The local launcher starts one process, and this job has {job.ranks} ranks",
                where="launcher.name=local",
                do="Use launcher=deepspeed, or hardware.gpus_per_node=1",
            )
        return [job.python, "-m", TRAIN_MODULE, str(job.folder)]

    def env(self, job: TrainJob) -> dict[str, str]:
        """Return what DeepSpeed would otherwise look for through MPI."""
        return {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job.port),
        }
