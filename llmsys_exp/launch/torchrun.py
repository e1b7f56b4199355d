"""PyTorch's launcher: one agent a machine, which starts that machine's ranks and ends them together.

On one machine the agent finds its own port and holds it, so that two jobs cannot collide. On several, each
agent gets its number; Slurm's `srun` starts them, or `over_ssh` does on the machines of a hostfile.
"""

from __future__ import annotations

import shlex

from llmsys_exp.launch.base import TrainJob
from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.launch.nodes import SLURM

NODE_RANK = "{node_rank}"


class TorchrunLauncher:
    """Starts `python -m torch.distributed.run`."""

    name = "torchrun"
    hides: tuple[str, ...] = ()

    def command(self, job: TrainJob) -> list[str]:
        """Return the command line that starts the agents of all machines."""
        if not job.nodes.is_remote:
            return self._agent(job, ["--standalone"])
        if job.nodes.source == SLURM:
            return self._under_slurm(job)
        variables = {**job.variables, **self.env(job)}
        return [
            *(job.python, "-m", "llmsys_exp.launch.over_ssh", "--hosts", ",".join(job.nodes.hosts)),
            *(f"--env={key}={value}" for key, value in sorted(variables.items())),
            "--",
            *self._agent(job, self._meeting(job, NODE_RANK)),
        ]

    def env(self, job: TrainJob) -> dict[str, str]:
        """Return the GPUs; the agents set what tells ranks apart."""
        return {VISIBLE: ",".join(job.gpus)} if job.gpus else {}

    def _agent(self, job: TrainJob, meeting: list[str]) -> list[str]:
        return [
            *(job.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(job.nodes.count), "--nproc_per_node", str(job.ranks)),
            *meeting,
            *("-m", job.module, str(job.folder)),
        ]

    def _meeting(self, job: TrainJob, node_rank: str) -> list[str]:
        return [
            *("--node_rank", node_rank),
            *("--master_addr", job.nodes.master_addr, "--master_port", str(job.port)),
        ]

    def _under_slurm(self, job: TrainJob) -> list[str]:
        agent = shlex.join(self._agent(job, self._meeting(job, NODE_RANK)))
        # only the task knows its number
        line = agent.replace(shlex.quote(NODE_RANK), '"$SLURM_NODEID"')
        return [
            *("srun", "--nodes", str(job.nodes.count), "--ntasks", str(job.nodes.count)),
            *("--ntasks-per-node", "1", "--nodelist", ",".join(job.nodes.hosts)),
            # within `srun --pty bash` that step holds all cores, and ours would wait for them for ever
            *("--overlap", "--kill-on-bad-exit=1", "sh", "-c", f"exec {line}"),
        ]
