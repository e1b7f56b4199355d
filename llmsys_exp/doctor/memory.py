"""Main memory and the limits on it: what a container allows, /dev/shm, open files, locked memory."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.look import Look
from planner.units import GIB, MIB

_SAY = Reporter("memory")
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
SHM = Path("/dev/shm")
INFINIBAND = Path("/sys/class/infiniband")
LEAST_SHM_BYTES = 1 * GIB
"""Docker gives 64 MiB; NCCL takes some ten of it for each pair of ranks, and loaders more."""
LEAST_FILES = 4096
LITTLE = 0.1


def check(look: Look) -> Iterator[Finding]:
    """Look at what processes of this user may take."""
    import psutil

    memory = psutil.virtual_memory()
    free, total = memory.available, memory.total
    told = f"{free / GIB:.1f} of {total / GIB:.1f} GiB of main memory are free"
    if free < LITTLE * total:
        yield _SAY.note("host", told, "ps aux --sort=-rss | head")
    else:
        yield _SAY.ok("host", told)
    yield from _cgroup(total)
    yield from _shm(len(look.gpus))
    yield from _limits()


def _cgroup(total: int) -> Iterator[Finding]:
    """The planner goes by the machine's memory, and the kernel kills at the container's."""
    for file in CGROUP_LIMITS:
        try:
            text = file.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal() and int(text) < total:
            said = f"This container may use {int(text) / GIB:.1f} GiB of the machine's {total / GIB:.1f}"
            yield _SAY.note("cgroup", said, f"hardware.host_memory_gib={int(text) / GIB:.1f}")
        return


def _shm(gpus: int) -> Iterator[Finding]:
    try:
        size = shutil.disk_usage(SHM)
    except OSError:
        yield _SAY.either(gpus > 1, "shm", f"{SHM} is missing: NCCL needs it", "mount -t tmpfs shm /dev/shm")
        return
    if size.free < LEAST_SHM_BYTES:
        said = f"{SHM} has {size.free // MIB} of {size.total // MIB} MiB free; NCCL and data loaders use it"
        fix = "docker run --shm-size=8g ..., or: mount -o remount,size=8g /dev/shm"
        yield _SAY.either(gpus > 1 and size.free < LEAST_SHM_BYTES // 4, "shm", said, fix)
    else:
        yield _SAY.ok("shm", f"{SHM}: {size.free / GIB:.1f} GiB free")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        fix = f"ulimit -n {hard if hard != resource.RLIM_INFINITY else 65536}"
        yield _SAY.note("nofile", f"{soft} open files at most; shards and ranks may need more", fix)
    else:
        yield _SAY.ok("nofile", f"{'any number of' if soft < 0 else soft} open files")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if INFINIBAND.is_dir() and locked != resource.RLIM_INFINITY:
        said = f"{locked // MIB} MiB may be locked, and InfiniBand locks its buffers"
        yield _SAY.note("memlock", said, "ulimit -l unlimited")
