"""How much memory one rank may use."""

from __future__ import annotations

import os
from dataclasses import replace

import planner
from llmsys_exp.config.schema import Config
from llmsys_exp.plan.case import CPU
from planner.forecasting import device_extra_bytes
from planner.tables import constant_bytes
from planner.units import GIB

GIB_F = float(GIB)


def budget_bytes(config: Config, case: planner.TrainingCase) -> int | None:
    """Bytes that the allocator of one rank may reserve; None where nothing is known.

    A GPU offers what its table row says beside the context, less the libraries that load later, NCCL,
    what others use and the gate's margin. Ranks on a CPU share the node's memory.
    """
    hardware = config.hardware
    if hardware.gpu == CPU:
        return _host_share(config)
    gpu = planner.gpu(hardware.gpu)
    total_gib = gpu.usable_gib + gpu.context_gib if hardware.memory_gib is None else hardware.memory_gib
    taken_gib = hardware.in_use_gib + config.gate.margin_gib
    return max(0, int((total_gib - taken_gib) * GIB_F) - device_extra_bytes(case))


def allocator_limit_bytes(config: Config, case: planner.TrainingCase) -> int | None:
    """Bytes at which the worker's allocator stops with `hardware.enforce_memory`; None: no limit.

    The budget without the gate's margin: what a process could reserve on the card that was planned for.
    """
    if not config.hardware.enforce_memory or config.hardware.gpu == CPU:
        return None
    open_gate = replace(config, gate=replace(config.gate, margin_gib=0.0))
    return budget_bytes(open_gate, case)


def host_memory_gib() -> float | None:
    """Main memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB_F
    except (ValueError, OSError):
        return None


def _host_share(config: Config) -> int | None:
    host_gib = config.hardware.host_memory_gib or host_memory_gib()
    if host_gib is None:
        return None
    base = constant_bytes("cpu_process_rss_gib")
    return max(0, int((host_gib - config.gate.margin_gib) * GIB_F) // config.hardware.gpus_per_node - base)
