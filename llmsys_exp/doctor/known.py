"""Sets of versions that were measured or tested together, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Together:
    """One set."""

    versions: Mapping[str, str]
    date: str
    source: str


TRAINING = (
    Together(
        {
            **{"torch": "2.13.0", "transformers": "5.23.0", "deepspeed": "0.19.8"},
            **{"peft": "0.21.2", "accelerate": "1.15.0"},
        },
        "2026-11-30",
        "the tests of this project, CPU (constraints.txt)",
    ),
    Together(
        {
            **{"torch": "2.11.0", "transformers": "5.17.0", "deepspeed": "0.19.8"},
            **{"peft": "0.21.0", "bitsandbytes": "0.50.2"},
        },
        "2026-11-29",
        "measured on an H200, driver 580.159.04, CUDA 13.0 (benchmarks/results/README.md)",
    ),
)  # fmt: skip
SERVING = (
    Together(
        {"sglang": "0.5.17", "torch": "2.11.0"},
        "2026-11-30",
        "measured on an H200 (benchmarks/results/README.md)",
    ),
)
QUANTIZING = (
    Together(
        {"gptqmodel": "7.5.0", "optimum": "2.3.0", "torch": "2.13.0", "transformers": "5.23.0"},
        "2026-11-30",
        "tested on a CPU (experiments/gptq.md)",
    ),
    Together(
        {"gptqmodel": "7.5.0", "torch": "2.11.0", "transformers": "5.17.0"},
        "2026-11-30",
        "measured on an H200 (experiments/gptq.md)",
    ),
)


def public(version: str) -> str:
    """Return a version without what a build adds.

    >>> public("2.11.0+cu130")
    '2.11.0'
    """
    return version.partition("+")[0]


def differences(together: Together, packages: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return package -> version here, version of the set; packages that are not here are left out."""
    return {
        name: (public(packages[name]), version)
        for name, version in together.versions.items()
        if name in packages and public(packages[name]) != version
    }
