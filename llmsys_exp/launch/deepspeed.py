"""DeepSpeed's own runner: one process a GPU on one machine or on those of a hostfile.

Read in DeepSpeed 0.19.8, `launcher/runner.py`: where CUDA_VISIBLE_DEVICES is set, the runner deletes it and
either ignores it (`--include`, `--num_gpus`) or reads its entries as numbers. So the GPUs are named with
`--include`, by number, and the variable is left out of the environment. Without `--hostfile` the runner would
take `/job/hostfile`.
"""

from __future__ import annotations

from llmsys_exp.errors import UserError
from llmsys_exp.launch.base import TrainJob
from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.launch.nodes import SLURM

NO_HOSTFILE = "/dev/null"
ENV_FILE = "deepspeed_env"
"""Variables for other machines: the runner passes on few of its own, and all of this file's."""


class DeepSpeedLauncher:
    """Starts `python -m deepspeed.launcher.runner`, so that no console script need be on PATH."""

    name = "deepspeed"
    hides = (VISIBLE,)

    def command(self, job: TrainJob) -> list[str]:
        """Return the runner's command line.

        Raises:
            UserError: for GPUs that have no number, and for machines given by Slurm.
        """
        if job.nodes.source == SLURM:
            raise UserError(
                "DeepSpeed's runner reads its machines from a hostfile, and here Slurm gives them",
                where="launcher.name=deepspeed",
                do="Use launcher=torchrun, or name the machines in launcher.hostfile",
            )
        if job.gpus and not job.indices:
            raise UserError(
                "DeepSpeed's runner takes GPUs by number, and these are named otherwise: "
                + ", ".join(job.gpus),
                where="CUDA_VISIBLE_DEVICES",
                do="Use launcher=torchrun",
            )
        return [
            job.python,
            *("-m", "deepspeed.launcher.runner"),
            *("--hostfile", job.nodes.hostfile or NO_HOSTFILE),
            *self._where(job),
            "--no_local_rank",
            *("--master_addr", job.nodes.master_addr),
            *("--master_port", str(job.port)),
            *("--module", job.module, str(job.folder)),
        ]

    def env(self, job: TrainJob) -> dict[str, str]:
        """Return where the runner finds the variables for other machines; it sets those of each rank."""
        return {"DS_ENV_FILE": str(job.folder / ENV_FILE)} if job.nodes.is_remote else {}

    def _where(self, job: TrainJob) -> list[str]:
        hosts = job.nodes.hosts or ("localhost",)
        if job.device == "cpu" and not job.nodes.hosts:
            return ["--num_gpus", str(job.ranks)]
        slots = ",".join(map(str, job.indices or range(job.ranks)))
        include = ["--include", "@".join(f"{host}:{slots}" for host in hosts)]
        if not job.nodes.is_remote:
            # a hostfile of this machine alone needs no ssh
            return [*include, "--no_ssh_check"] if job.nodes.hosts else include
        return [*include, "--force_multi"]
