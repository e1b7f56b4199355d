"""Runs every check, and puts what they say together with the facts that a report needs."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmsys_exp.doctor import cluster, compilers, disk, gpus, leftovers, memory, settings, versions
from llmsys_exp.doctor.engines import inference_engines, serving_findings
from llmsys_exp.doctor.finding import NOTE, OK, PROBLEM, Finding, Reporter
from llmsys_exp.doctor.look import Look
from llmsys_exp.doctor.own import own_packages
from llmsys_exp.evidence.machine import cpu_name, system_name
from llmsys_exp.launch.interpreter import ENGINE_PACKAGES

SCHEMA_VERSION = 1
PACKAGES = (
    *("llmsys-exp", "hydra-core", "omegaconf", "torch", "deepspeed", "transformers", "peft", "accelerate"),
    *("bitsandbytes", "safetensors", "numpy"),
)
CHECKS: dict[str, Callable[[Look], Iterator[Finding]]] = {
    one.__name__.rpartition(".")[2]: one.check
    for one in (versions, gpus, memory, disk, compilers, settings, leftovers, cluster)
}
STATES = (PROBLEM, NOTE, OK)


def examine(look: Look) -> dict[str, Any]:
    """Return the whole report; its keys stay the same within a `schema_version`."""
    import psutil

    engines = inference_engines(look)
    findings = [finding for name, check in CHECKS.items() for finding in checked(name, check, look)]
    findings += serving_findings(look, engines)
    main, room = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    packages = own_packages()
    report = {
        "schema_version": SCHEMA_VERSION,
        "counts": {state: sum(one.state == state for one in findings) for state in STATES},
        "findings": [one.to_dict() for one in findings],
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "system": system_name(),
            "cpu": cpu_name(),
            "cpus": len(os.sched_getaffinity(0)),
        },
        "versions": {name: packages[name] for name in PACKAGES if name in packages},
        "engines": {
            step: [name for name in names if name not in look.packages]
            for step, names in ENGINE_PACKAGES.items()
        },
        "inference": engines,
        "gpus": look.gpus,
        "memory_bytes": {"total": main.total, "available": main.available},
        "disk_bytes": {"total": room.total, "free": room.free},
    }
    return _without_home(report, os.path.expanduser("~"))


def checked(name: str, check: Callable[[Look], Iterator[Finding]], look: Look) -> list[Finding]:
    """Return what a check finds; one that fails itself says so, for a report must come out in any case."""
    try:
        return list(check(look))
    except Exception as error:
        said = f"This check failed: {type(error).__name__}: {error}"
        return [Reporter(name).note("check", said, "report it: this is a mistake in llmsys")]


def _without_home(value: Any, home: str) -> Any:
    """Write `~` for the home folder everywhere: a report is pasted where others read it."""
    if isinstance(value, dict):
        return {key: _without_home(one, home) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_home(one, home) for one in value]
    if not isinstance(value, str) or home in ("", "/", "~"):
        return value
    return value.replace(f"{home}/", "~/") if value != home else "~"
