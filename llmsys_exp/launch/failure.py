"""Why a worker failed: a kind for the records and advice for the user, from its exit code and its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OOM_GPU, OOM_HOST, CONFIG, DATA, DISK, KILLED, NCCL, TIMEOUT, BUG, OTHER = (
    "oom_gpu",
    "oom_host",
    "config",
    "data",
    "disk",
    "killed",
    "nccl",
    "timeout",
    "bug",
    "other",
)
TAIL_LINES = 12


@dataclass(frozen=True)
class Failure:
    """Kind, one sentence, and what to try."""

    kind: str
    what: str
    do: str


_DO = {
    OOM_GPU: "Try a smaller training.micro_batch, training.gradient_checkpointing=true, a higher zero stage, "
    "or launcher.on_oom=smaller_batch or replan, which tries by itself",
    OOM_HOST: "Use fewer ranks, a smaller training.micro_batch, or no offload",
}
_KILL_COUNTERS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)

_PATTERNS: tuple[tuple[str, str, str, str], ...] = (
    (
        OOM_GPU,
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory",
        "The GPU ran out of memory",
        _DO[OOM_GPU],
    ),
    (
        OOM_HOST,
        r"\bMemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (can't|not enough)|std::bad_alloc",
        "The machine ran out of main memory",
        _DO[OOM_HOST],
    ),
    (
        NCCL,
        r"NCCL (error|WARN|timeout)|ncclSystemError|ncclUnhandledCudaError|Watchdog caught collective"
        r"|Connection closed by peer|EADDRINUSE|address already in use",
        "The ranks lost each other",
        "Start again; when it repeats, set ++launcher.env.NCCL_DEBUG=INFO and read the log",
    ),
    (
        DISK,
        r"No space left on device|Disk quota exceeded",
        "The disk is full",
        "Free some space, or move outputs: paths.outputs=FOLDER",
    ),
)


_LAUNCHERS_REPORT = re.compile(r"[EW]\d{4} .*torch/distributed/elastic/.*(failed \(exitcode|closing signal)")


def classify(
    returncode: int, lines: Sequence[str], *, timed_out: bool = False, killed_by_kernel: bool = False
) -> Failure:
    """Name the failure of a worker that ended with `returncode` after printing `lines`."""
    if timed_out:
        return Failure(TIMEOUT, "The worker took longer than launcher.timeout_s", "Raise launcher.timeout_s")
    text = "\n".join(lines)
    for kind, pattern, what, do in _PATTERNS:
        if re.search(pattern, text):
            return Failure(kind, what, do)
    if _killed(returncode, text):
        if killed_by_kernel:
            return Failure(OOM_HOST, "The kernel ended a worker because main memory ran out", _DO[OOM_HOST])
        return Failure(
            KILLED,
            "The worker was killed from outside (signal 9)",
            "Often the machine ran out of main memory: use fewer ranks or a smaller training.micro_batch",
        )
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return Failure(KILLED, f"The worker was stopped by {name}", "Start again")
    return Failure(OTHER, f"The worker ended with exit code {returncode}", "Read the end of the log")


def failure_of_event(error: Mapping[str, Any], *, otherwise: Failure) -> Failure:
    """Prefer what the worker says of its own failure; a mere bug may have a known cause in the log."""
    kind, text = str(error.get("kind", OTHER)), str(error.get("text", otherwise.what))
    if kind == BUG and otherwise.kind != OTHER:
        return otherwise
    advice = "" if error.get("advised") else _DO.get(kind, otherwise.do if kind == BUG else "")
    return Failure(kind, text, advice)


def kernel_kills() -> int:
    """Count the processes that the kernel has ended for want of memory, here or in our control group."""
    return max((_count(Path(file)) for file in _KILL_COUNTERS), default=0)


def _count(file: Path) -> int:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else 0


def log_tail(lines: Sequence[str], count: int = TAIL_LINES) -> str:
    """Return the last lines that say something, without what torchrun says of a rank that spoke itself."""
    told = [line for line in lines if line.strip()]
    of_launcher = next((at for at, line in enumerate(told) if _LAUNCHERS_REPORT.match(line)), len(told))
    return "\n".join((told[:of_launcher] or told)[-count:])


def _killed(returncode: int, text: str) -> bool:
    by_signal = returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    # the runner's words and torchrun's
    said = r"exits with return code = -9\b|exitcode\s*: -9\b|Signal 9 \(SIGKILL\)"
    return by_signal or re.search(said, text) is not None
