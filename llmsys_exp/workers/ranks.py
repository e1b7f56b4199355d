"""This process among the ranks: started by a launcher, or alone."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.determinism import be_deterministic
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.training import oom
from planner.units import gib

SINGLE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


@dataclass(frozen=True)
class Ranks:
    """Who this process is, and sums over all ranks."""

    rank: int
    world_size: int
    device: Any

    @property
    def is_first(self) -> bool:
        """Rank 0 writes files and speaks for all."""
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """Sum each value over all ranks."""
        import torch
        from torch import distributed

        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(numbers)
        return numbers.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order."""
        from torch import distributed

        gathered: list[Any] = [None] * self.world_size
        distributed.all_gather_object(gathered, value)
        return gathered

    def share(self, count: int) -> list[int]:
        """Deal `count` things to this rank: as many numbers on every rank, -1 where none is left.

        All ranks must take part in each forward pass under ZeRO-3.
        """
        each = -(-count // self.world_size)
        mine = range(self.rank, each * self.world_size, self.world_size)
        return [number if number < count else -1 for number in mine]


def join(job: Job) -> Ranks:
    """Set up threads, device and the process group; builds no operator on the CPU."""
    on_cpu = job.resolved.device == "cpu"
    oom.remember(job.plan)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        # DeepSpeed would look for MPI if one of the five were missing
        os.environ.update(SINGLE_RANK | {"MASTER_PORT": str(_free_port())})
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size != job.resolved.world_size:
        raise UserError(
            f"{world_size} ranks were started, the run was planned for {job.resolved.world_size}",
            where="WORLD_SIZE",
            do="Start it with launch.sh of the run folder",
        )
    use_threads_of_environment()
    if job.config.training.deterministic:
        be_deterministic()
    device = ready_device(job.resolved.device)
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo" if on_cpu else "nccl", verbose=False)
    enforce_memory(device, job.plan.get("allocator_limit_bytes"))
    return Ranks(rank=int(os.environ["RANK"]), world_size=world_size, device=device)


def enforce_memory(device: Any, limit_bytes: int | None) -> None:
    """Limit the allocator as `hardware.enforce_memory` says, and tell of it; None: it says nothing."""
    if limit_bytes is None:
        return
    if limit_memory(device, limit_bytes):
        events.note(f"GPU memory is limited to {gib(limit_bytes):.2f} GiB (hardware.enforce_memory)")
    else:
        events.note("hardware.enforce_memory limits nothing: this GPU is no larger than the one planned for")


def limit_memory(device: Any, limit_bytes: int) -> bool:
    """Let the allocator take no more than a smaller card has; False where this GPU has no more than that."""
    import torch

    _, total = torch.cuda.mem_get_info(device)
    if limit_bytes >= total:
        return False
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total, device)
    return True


def use_threads_of_environment() -> None:
    """Keep to OMP_NUM_THREADS, so that the ranks of one machine do not fight for its cores."""
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))


def quieten() -> None:
    """Keep the log for what matters: no bars and no deprecation warnings of other libraries."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def prepare_alone(seed: int) -> None:
    """Set up a worker that is one process and no rank: threads, quiet libraries, seeds."""
    use_threads_of_environment()
    quieten()
    seed_everything(seed)


def pick_device(kind: str) -> Any:
    """Return torch's device; a missing GPU is the user's to mend."""
    import torch

    if kind == "cpu":
        # transformers and peft import deepspeed at times, which looks for an accelerator and says so
        os.environ["DS_ACCELERATOR"] = "cpu"
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "torch sees no CUDA device",
            where="resolved.device",
            do="Set hardware=cpu, or give launcher.python an environment with a CUDA build of torch",
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    # operators are compiled for this GPU alone; DeepSpeed cannot read entries such as 10.0a of a longer list
    os.environ["TORCH_CUDA_ARCH_LIST"] = "{}.{}".format(*torch.cuda.get_device_capability(device))
    return device


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    from transformers import set_seed

    set_seed(seed)


def ready_device(kind: str) -> Any:
    """Return torch's device, with DeepSpeed imported and told what it would find out wrongly."""
    device = pick_device(kind)
    import deepspeed

    if kind == "cpu":
        # without this it compiles an operator first; gloo does the same work
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    else:
        leave_nvml_to_numbers()
    return device


def leave_nvml_to_numbers() -> None:
    """Let DeepSpeed ask torch for free memory where GPUs are named by UUID.

    It finds a GPU for NVML by reading CUDA_VISIBLE_DEVICES as numbers (0.19.8,
    `cuda_accelerator.py: _get_nvml_gpu_id`) and dies of any other name.
    """
    from deepspeed.accelerator import cuda_accelerator

    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if names and not all(one.strip().isdigit() for one in names.split(",")):
        cuda_accelerator.pynvml = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def batches(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Cut a sequence into batches."""
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]
