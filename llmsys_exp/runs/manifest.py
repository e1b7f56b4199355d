"""The evidence of a finished run, in one JSON file written last."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1

PACKAGES = (
    "llmsys-exp",
    "hydra-core",
    "omegaconf",
    "torch",
    "deepspeed",
    "transformers",
    "peft",
    "accelerate",
    "safetensors",
    "numpy",
)


def package_versions(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the version of each installed package; missing ones are left out."""
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def machine() -> dict[str, Any]:
    """Describe the machine in the terms that change results."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and cleanliness of the work tree around `folder`, or None outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def utc_now() -> str:
    """Return the time in ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
