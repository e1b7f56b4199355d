"""Room for a merge, looked at before anything is loaded: on the disk, in main memory, on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.inputs.weight_files import stored_tensors
from llmsys_exp.runs import room
from llmsys_exp.workers import events
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.ranks import pick_device
from llmsys_exp.workers.shards import GB
from planner.merging import Merge, device_bytes, disk_bytes, host_bytes
from planner.units import gib


def need_disk(job: Job, base: Path | None) -> None:
    """Refuse to begin what the disk has no room for; without files of the base nothing is known.

    Raises:
        UserError: with both figures.
    """
    parameters = _parameters(base)
    if parameters:
        room.need_disk("The merged model", disk_bytes(parameters), job.paths.folder)


def need_host(job: Job, base: Path | None) -> int:
    """Refuse a merge that main memory cannot hold, as `gate.policy` says; return what it needs.

    Raises:
        DoesNotFit: with the largest part.
    """
    import psutil

    merge = _merge(job, base, device_for(job, base).type)
    policy = job.config.gate.policy
    if not merge.parameters or policy is GatePolicy.off:
        return 0
    uses, free = host_bytes(merge), psutil.virtual_memory().available
    need = sum(uses.values())
    events.note(f"Merging is planned at {gib(need):.2f} GiB of main memory; {gib(free):.2f} are free.")
    smaller = "a smaller export.shard_gb"
    lack = room.lack_of_memory("Merging", uses, free, place="main memory", smaller=smaller)
    if lack is not None and policy is not GatePolicy.warn:
        raise lack
    if lack is not None:
        events.note(f"{lack.what}.  {lack.why}.")
    return need


def device_for(job: Job, base: Path | None) -> Any:
    """Return where to merge: on the GPU if the unquantised model has room there, else on the host."""
    import torch

    device = pick_device(job.resolved.device)
    if device.type != "cuda":
        return device
    need = sum(device_bytes(_merge(job, base, device.type)).values())
    return device if need < torch.cuda.mem_get_info(device)[0] else torch.device("cpu")


def _merge(job: Job, base: Path | None, device: str) -> Merge:
    sizes = [one.numel for one in stored_tensors(base).values()] if base is not None else []
    adapter = stored_tensors(job.paths.adapter) if job.paths.adapter.is_dir() else {}
    return Merge(
        parameters=sum(sizes),
        largest=max(sizes, default=0),
        adapter_bytes=sum(one.nbytes for one in adapter.values()),
        dtype=job.config.training.dtype.name,
        device=device,
        shard_bytes=int(job.config.export.shard_gb * GB),
    )


def _parameters(base: Path | None) -> int:
    return 0 if base is None else sum(one.numel for one in stored_tensors(base).values())
