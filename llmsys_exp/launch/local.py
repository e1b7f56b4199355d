"""One process, no launcher: the quickest start for a single GPU or for the CPU."""

from __future__ import annotations

from llmsys_exp.errors import UserError
from llmsys_exp.launch.base import TrainJob
from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.launch.nodes import LOCALHOST


class LocalLauncher:
    """Starts the training worker directly."""

    name = "local"
    hides: tuple[str, ...] = ()

    def command(self, job: TrainJob) -> list[str]:
        """Return the worker's command line.

        Raises:
            UserError: when the job wants more than one rank.
        """
        if job.nodes.is_remote or job.nodes.count > 1:
            raise UserError(
                f"The local launcher starts one process here, and this job has {job.nodes.count} machines",
                where="launcher.name=local",
                do="Use launcher=auto",
            )
        if job.ranks != 1:
            raise UserError(
                f"The local launcher starts one process, and this job has {job.ranks} ranks",
                where="launcher.name=local",
                do="Use launcher=auto, or hardware.gpus_per_node=1",
            )
        return [job.python, "-m", job.module, str(job.folder)]

    def env(self, job: TrainJob) -> dict[str, str]:
        """Return what DeepSpeed would otherwise look for through MPI, and the GPU."""
        return {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": LOCALHOST,
            "MASTER_PORT": str(job.port),
            **({VISIBLE: job.gpus[0]} if job.gpus else {}),
        }
