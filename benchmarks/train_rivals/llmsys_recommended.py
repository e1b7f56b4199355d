"""(e) llmsys at its recommended settings: packed sequences, fused kernels, and what the planner chooses."""

from __future__ import annotations

from benchmarks.train_rivals import llmsys
from benchmarks.train_rivals.inputs import MEAN_LOG, SIGMA_LOG
from benchmarks.train_rivals.job import Job

train = llmsys.train


def packed_micro_batch(job: Job) -> int:
    """Sequences that hold as many tokens as the rivals' micro-batch does on average: the same training."""
    from math import exp

    mean_tokens = exp(MEAN_LOG + SIGMA_LOG**2 / 2)
    return max(1, round(job.micro_batch * mean_tokens / job.max_length))


def settings(job: Job) -> tuple[str, ...]:
    """What is recommended; Liger's kernels need a GPU."""
    packed = f"training.micro_batch={packed_micro_batch(job)}"
    return ("data.packing=true", packed, f"training.liger={str(job.device == 'cuda').lower()}")


def prepare(job: Job) -> None:
    """Make the run folder and take over its environment."""
    llmsys.start(job, *settings(job))
