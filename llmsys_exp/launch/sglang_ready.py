"""Can SGLang run on this machine with an interpreter's packages, and if not, why not. Loads nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from llmsys_exp.launch.sglang import KERNELS

OLDEST_CAPABILITY, OLDEST_KERNELS = (7, 5), (8, 0)
"""Compute capability that SGLang asks for, and the one at which the kernels in its wheel begin."""
FIRST_CUDA_13 = (2, 11)
"""PyPI's torch is built for CUDA 13 from this release on, and for CUDA 12 before."""
OLDEST_DRIVER = {12: 525, 13: 580}
"""Source: CUDA toolkit release notes, table of minor-version compatibility."""


def reasons_against(versions: Mapping[str, str], gpus: Sequence[Mapping[str, str]]) -> list[str]:
    """Name everything that keeps SGLang from running here.

    Args:
        versions: of the packages that its interpreter has.
        gpus: what nvidia-smi says of each: `name`, `driver_version`, perhaps `compute_cap`.
    """
    if "sglang" not in versions:
        return ["its interpreter lacks sglang"]
    reasons = list(_packages(versions))
    if not gpus:
        return [*reasons, "nvidia-smi finds no GPU"]
    for name, capability in _capabilities(gpus):
        if capability < OLDEST_CAPABILITY:
            reasons.append(f"{name} has compute capability {_text(capability)}, and SGLang asks for 7.5")
        elif capability < OLDEST_KERNELS:
            has = f"{name} has compute capability {_text(capability)}"
            reasons.append(f"{has}, and the kernels in SGLang's wheel begin at 8.0")
    return [*reasons, *_driver(versions, gpus)]


def cuda_of(torch_version: str) -> int | None:
    """Return the CUDA generation that a torch is built for; None for one without CUDA."""
    number, _, local = torch_version.partition("+")
    if local:
        found = re.match(r"cu(\d\d)\d", local)
        return int(found[1]) if found else None
    parts = [int(part) for part in re.findall(r"\d+", number)[:2]]
    return 13 if tuple(parts) >= FIRST_CUDA_13 else 12


def _packages(versions: Mapping[str, str]) -> Iterator[str]:
    if not any(name in versions for name in KERNELS):
        yield f"its interpreter lacks {KERNELS[0]}, the compiled kernels"
    if "torch" not in versions:
        yield "its interpreter lacks torch"
    elif cuda_of(versions["torch"]) is None:
        yield f"its torch {versions['torch']} is built without CUDA"


def _capabilities(gpus: Sequence[Mapping[str, str]]) -> list[tuple[str, tuple[int, int]]]:
    """Each kind of GPU once; those whose driver does not tell are left out."""
    found: dict[str, tuple[int, int]] = {}
    for gpu in gpus:
        match = re.fullmatch(r"(\d+)\.(\d+)", gpu.get("compute_cap", ""))
        if match:
            found[gpu.get("name", "the GPU")] = (int(match[1]), int(match[2]))
    return list(found.items())


def _driver(versions: Mapping[str, str], gpus: Sequence[Mapping[str, str]]) -> Iterator[str]:
    cuda = cuda_of(versions["torch"]) if "torch" in versions else None
    driver = gpus[0].get("driver_version", "")
    match = re.match(r"\d+", driver)
    if cuda in OLDEST_DRIVER and match and int(match[0]) < OLDEST_DRIVER[cuda]:
        yield f"driver {driver} is too old for CUDA {cuda} of its torch: {OLDEST_DRIVER[cuda]} or above"


def _text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
