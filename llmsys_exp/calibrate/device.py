"""Which device this is: a GPU by its name and driver, or the processor by its name and cores."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llmsys_exp.evidence import nvml
from llmsys_exp.evidence.gpus import gpu_facts
from llmsys_exp.evidence.machine import cpu_name
from llmsys_exp.launch.gpus import machine_has_gpus
from planner.tables import CPU, gpus
from planner.units import GIB

_FORMS = re.compile(r"nvidia|tesla|geforce|amd|instinct|pcie|sxm\d?|hbm\d?e?|oam|\d+gb")
"""Words in the name of a card that say nothing of its kind."""
MEMORY_OFF_BY = 0.03
"""Drivers differ in how much of a card they show."""


@dataclass(frozen=True)
class Device:
    """What a calibration is of."""

    name: str
    driver: str
    """Version of the driver; of a processor, its cores."""
    kind: str
    """Name in the planner's table; empty where it has no row."""

    @property
    def key(self) -> str:
        """What it is called in the file."""
        return f"{self.name}, {self.driver}"

    @property
    def on_cpu(self) -> bool:
        """Whether it is a processor."""
        return self.kind == CPU


def kind_of(name: str, memory_bytes: int | None) -> str:
    """Return the row of the planner's table that a card belongs to; empty where there is none.

    >>> kind_of("NVIDIA A100-SXM4-80GB", 80 << 30), kind_of("NVIDIA GeForce RTX 4080 SUPER", 16 << 30)
    ('a100-80gb', '')
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    stem = "".join(word for word in words if not _FORMS.fullmatch(word))
    for kind, row in gpus().items():
        fits = memory_bytes is None or abs(memory_bytes / GIB / row.memory_gib - 1) <= MEMORY_OFF_BY
        if stem in (kind.split("-")[0], f"rtx{kind}") and fits:
            return kind
    return ""


def device_of(machine: Mapping[str, Any]) -> Device | None:
    """Return the device that a manifest's part `machine` says the run was on; None where it does not say.

    Raises:
        ValueError: for a run on cards of several kinds.
    """
    cards = [one for one in machine.get("gpus") or () if isinstance(one, dict) and one.get("in_run")]
    if cards:
        names = {str(one.get("name")) for one in cards}
        if len(names) > 1:
            raise ValueError(f"it ran on several kinds of GPU: {', '.join(sorted(names))}")
        return _card(names.pop(), str(machine.get("driver")), cards[0].get("memory_bytes"))
    return _processor(machine)


def _card(name: str, driver: str, memory_bytes: int | None) -> Device:
    return Device(name, f"driver {driver}", kind_of(name, memory_bytes))


def _processor(machine: Mapping[str, Any]) -> Device | None:
    name, cpus = machine.get("cpu_name"), machine.get("cpus")
    return Device(str(name), f"{cpus} cores", CPU) if name and cpus else None


@lru_cache
def devices_here() -> tuple[Device, ...]:
    """Return the GPUs of this machine, each kind once, and its processor."""
    cards = [_card(*one) for one in _cards()] if machine_has_gpus() else []
    processor = _processor({"cpu_name": cpu_name(), "cpus": len(os.sched_getaffinity(0))})
    return tuple(dict.fromkeys([*cards, *([processor] if processor else [])]))


def _cards() -> list[tuple[str, str, int | None]]:
    try:
        with nvml.opened() as library:
            driver = nvml.text(library.nvmlSystemGetDriverVersion())
            handles = [library.nvmlDeviceGetHandleByIndex(one) for one in range(library.nvmlDeviceGetCount())]
            return [
                (
                    nvml.text(library.nvmlDeviceGetName(one)),
                    driver,
                    int(library.nvmlDeviceGetMemoryInfo(one).total),
                )
                for one in handles
            ]
    except Exception:  # whatever NVML lacks, nvidia-smi is asked
        facts = gpu_facts((), [])
        return [(one["name"], str(facts["driver"]), one["memory_bytes"]) for one in facts["gpus"]]
