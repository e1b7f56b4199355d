"""A process group in which this process is one rank and nobody else is there.

Its collectives return at once and change nothing: what is gathered is whatever the memory held before. Sizes,
and so memory, are those of a real group; losses and gradients have no meaning.
"""

from __future__ import annotations

import os
from typing import Any

from llmsys_exp.workers.determinism import be_deterministic
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.ranks import SINGLE_RANK, Ranks, ready_device, use_threads_of_environment
from llmsys_exp.workers.training import oom


def join_alone(job: Job, rank: int) -> Ranks:
    """Set up threads, device and a process group of the job's size, as one of its ranks."""
    oom.remember(job.plan)
    # the events of a worker come from rank 0, and this process speaks for itself whichever rank it plays
    os.environ.update(SINGLE_RANK | {"WORLD_SIZE": str(job.resolved.world_size), "MASTER_PORT": "0"})
    use_threads_of_environment()
    if job.config.training.deterministic:
        be_deterministic()
    device = ready_device(job.resolved.device)
    _start_group(rank, job.resolved.world_size, device.type)
    return Ranks(rank=rank, world_size=job.resolved.world_size, device=device)


def _start_group(rank: int, world_size: int, device: str) -> None:
    import deepspeed
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    deepspeed.init_distributed(dist_backend="gloo" if device == "cpu" else "nccl", verbose=False)
    if rank != 0:
        from deepspeed.runtime.zero import utils

        # ZeRO-3 asks rank 0 whether it goes through the same weights (0.19.8); the answer never comes
        utils.assert_lst_len_same_as_other_ranks = lambda numbers: None
        utils.get_lst_from_rank0 = list


def apply_every_update(wrapper: Any) -> None:
    """Let no update be left out for gradients that are no numbers, as gathered weights often are none.

    What DeepSpeed computes to find out is computed all the same; names are those of 0.19.8.
    """
    from deepspeed.runtime import bf16_optimizer
    from deepspeed.runtime.fp16 import fused_optimizer, unfused_optimizer
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    norms = [(one, "is_invalid_grad_norm") for one in (bf16_optimizer, stage_1_and_2, stage3)]
    norms += [(one, "is_invalid_grad_norm") for one in (fused_optimizer, unfused_optimizer)]
    checker = getattr(wrapper, "overflow_checker", None)
    checks = [(wrapper, "has_overflow")]
    checks += [(checker, name) for name in ("has_overflow", "check_using_norm", "check")]
    for owner, name in (*norms, *checks):
        if hasattr(owner, name):
            setattr(owner, name, _never(getattr(owner, name)))


def _never(find: Any) -> Any:
    def found(*given: Any, **named: Any) -> bool:
        find(*given, **named)
        return False

    return found
