"""Which packages an interpreter has: every distribution, not only those that we know of."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmsys_exp.evidence import probe
from llmsys_exp.evidence.errors import EvidenceError

PROBE_TIMEOUT_S = 60


def installed(python: str = sys.executable) -> dict[str, Any]:
    """Return `python`, `executable`, `packages`, `cuda` and `nccl` of an interpreter.

    Raises:
        EvidenceError: when it does not answer.
    """
    told = _looked() if python == sys.executable else _asked(python)
    return {**told, "packages": dict(told["packages"]), "executable": python}


def packages_hash(packages: Mapping[str, str]) -> str:
    """Return a SHA-256 that is the same where every package has the same version."""
    return hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()


@lru_cache
def _looked() -> dict[str, Any]:
    return probe.look()


@lru_cache
def _asked(python: str) -> dict[str, Any]:
    # as text: the other interpreter need not see our packages, nor have a Python that reads them
    script = Path(probe.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-c", script], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
        told = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise EvidenceError(f"{python} did not say what it has installed: {error}") from error
    if not isinstance(told, dict) or not isinstance(told.get("packages"), dict):
        raise EvidenceError(f"{python} did not say what it has installed")
    return told
