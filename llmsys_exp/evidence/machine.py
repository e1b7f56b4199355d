"""The machine that a run was on: processor, memory, system, GPUs."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.evidence.gpus import gpu_facts
from llmsys_exp.launch.gpus import machine_has_gpus

_NO_GPUS = {"gpus": [], "driver": None, "cuda_driver": None, "topology": None}


def machine_facts(gpus: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """Return the machine's part of the manifest.

    Args:
        gpus: entries of CUDA_VISIBLE_DEVICES that the run uses.
        notes: gets a line for each piece that is missing.
    """
    import psutil

    return {
        "host": _host(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_name": cpu_name(),
        "host_memory_bytes": psutil.virtual_memory().total,
        **(gpu_facts(gpus, notes) if machine_has_gpus() else _NO_GPUS),
    }


def system_name() -> str | None:
    """Return what the operating system calls itself, such as `Debian GNU/Linux 12 (bookworm)`."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _host() -> str:
    """A hash: it tells one machine from another without naming it."""
    try:
        number = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        number = ""
    return hashlib.sha256(f"llmsys:{number}:{platform.node()}".encode()).hexdigest()[:16]


def cpu_name() -> str | None:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.processor() or platform.machine() or None)
