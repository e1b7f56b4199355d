"""`llmsys doctor`: what is installed, which engines work here, GPUs, memory, disk. To paste in a report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.cli.options import no_more_arguments, split_options
from llmsys_exp.errors import EXIT_OK
from llmsys_exp.evidence.machine import system_name
from llmsys_exp.evidence.packages import installed
from llmsys_exp.launch.interpreter import ENGINE_PACKAGES, extra_of, missing_packages
from llmsys_exp.report.console import Console, gib

_HELP = """llmsys doctor - show versions, engines, GPUs, memory and disk

Usage:  llmsys doctor [overrides] [--json]

Overrides say where engines are: launcher.python=FILE, inference.sglang.python=FILE.
"""
PACKAGES = (
    *("llmsys-exp", "hydra-core", "omegaconf", "torch", "deepspeed", "transformers", "peft", "accelerate"),
    *("safetensors", "numpy"),
)
_GPU_QUERY = "name,memory.total,memory.used,driver_version"


def run(arguments: Sequence[str]) -> int:
    """Look around and report."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    flags = [text for text in rest if text.startswith("-") or "=" not in text]
    no_more_arguments("doctor", flags)
    report = examine(rest)
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        _show(Console.on(sys.stdout), report)
    return EXIT_OK


def examine(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the report shows; overrides say where interpreters of engines are."""
    import psutil

    from llmsys_exp.cli.doctor_engines import inference_engines

    found, packages = gpus(), installed()["packages"]
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    return {
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "system": system_name(),
            "cpus": len(os.sched_getaffinity(0)),
        },
        "versions": {name: packages[name] for name in PACKAGES if name in packages},
        "engines": {step: missing_packages(names, sys.executable) for step, names in ENGINE_PACKAGES.items()},
        "inference": inference_engines(overrides, found),
        "gpus": found,
        "memory_bytes": {"total": memory.total, "available": memory.available},
        "disk_bytes": {"total": disk.total, "free": disk.free},
    }


def gpus() -> list[dict[str, str]]:
    """Return the GPUs that nvidia-smi reports; none where it is absent."""
    found = _nvidia_smi(_GPU_QUERY)
    # asked apart: drivers before 2022 refuse the whole question for it
    capabilities = _nvidia_smi("compute_cap") or [{}] * len(found)
    return [{**one, **told} for one, told in zip(found, capabilities, strict=False)]


def _nvidia_smi(query: str) -> list[dict[str, str]]:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    keys = query.split(",")
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [dict(zip(keys, (cell.strip() for cell in line.split(",")), strict=False)) for line in lines]


def _show(console: Console, report: Mapping[str, Any]) -> None:
    console.title("Machine")
    console.table([[key, str(value)] for key, value in report["machine"].items()])
    for key in ("memory_bytes", "disk_bytes"):
        numbers = ", ".join(f"{gib(size)} GiB {name}" for name, size in report[key].items())
        console.table([[key.removesuffix("_bytes"), numbers]])
    console.title("Packages")
    console.table([[name, version] for name, version in report["versions"].items()])
    console.title("Engines")
    console.table([[step, _engine(missing)] for step, missing in report["engines"].items()])
    console.title("Inference engines")
    console.table([row for engine in report["inference"] for row in _inference(engine)])
    console.title("GPUs")
    rows = [list(gpu.values()) for gpu in report["gpus"]]
    console.table(rows or [["none found by nvidia-smi"]])


def _engine(missing: Sequence[str]) -> str:
    if not missing:
        return "ready"
    return f"lacks {', '.join(missing)}: pip install 'llmsys-exp[{extra_of(missing)}]'"


def _inference(engine: Mapping[str, Any]) -> list[list[str]]:
    """An engine's rows: its state with its versions, then each reason against it."""
    versions = [f"{name} {version}" for name, version in engine["versions"].items()]
    state = "not here" if engine["reasons"] else "ready"
    where = ", ".join([*versions, engine["python"]])
    return [[engine["engine"], state, where], *(["", "", f"- {reason}"] for reason in engine["reasons"])]
