"""Why a worker failed: a kind for the records and advice for the user, from its exit code and its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

OOM_GPU, OOM_HOST, CONFIG, DATA, KILLED, NCCL, TIMEOUT, OTHER = (
    "oom_gpu",
    "oom_host",
    "config",
    "data",
    "killed",
    "nccl",
    "timeout",
    "other",
)
TAIL_LINES = 12


@dataclass(frozen=True)
class Failure:
    """Kind, one sentence, and what to try."""

    kind: str
    what: str
    do: str


_PATTERNS: tuple[tuple[str, str, str, str], ...] = (
    (
        OOM_GPU,
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory",
        "The GPU ran out of memory",
        "Try a smaller training.micro_batch, training.gradient_checkpointing=true, or a higher zero stage; "
        "`llmsys plan` shows what each saves",
    ),
    (
        OOM_HOST,
        r"\bMemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (can't|not enough)|std::bad_alloc",
        "The machine ran out of main memory",
        "Use fewer ranks, a smaller training.micro_batch, or no offload",
    ),
    (
        NCCL,
        r"NCCL (error|WARN|timeout)|ncclSystemError|ncclUnhandledCudaError|Watchdog caught collective"
        r"|Connection closed by peer|EADDRINUSE|address already in use",
        "The ranks lost each other",
        "Start again; when it repeats, set launcher.env.NCCL_DEBUG=INFO and read the log",
    ),
    (
        OTHER,
        r"No space left on device",
        "The disk is full",
        "Free some space, or move outputs: paths.outputs=FOLDER",
    ),
)


def classify(returncode: int, lines: Sequence[str], *, timed_out: bool = False) -> Failure:
    """Name the failure of a worker that ended with `returncode` after printing `lines`."""
    if timed_out:
        return Failure(TIMEOUT, "The worker took longer than launcher.timeout_s", "Raise launcher.timeout_s")
    text = "\n".join(lines)
    for kind, pattern, what, do in _PATTERNS:
        if re.search(pattern, text):
            return Failure(kind, what, do)
    if _killed(returncode, text):
        return Failure(
            OOM_HOST if "oom" in text.lower() else KILLED,
            "The worker was killed from outside (signal 9)",
            "Usually the machine ran out of main memory: use fewer ranks or a smaller training.micro_batch",
        )
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return Failure(KILLED, f"The worker was stopped by {name}", "Start again")
    return Failure(OTHER, f"The worker ended with exit code {returncode}", "Read the end of the log")


def log_tail(lines: Sequence[str], count: int = TAIL_LINES) -> str:
    """Return the last lines that say something."""
    return "\n".join([line for line in lines if line.strip()][-count:])


def _killed(returncode: int, text: str) -> bool:
    by_signal = returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return by_signal or re.search(r"exits with return code = -9\b", text) is not None
