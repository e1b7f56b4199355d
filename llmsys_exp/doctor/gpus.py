"""GPUs: are there any, does the driver go with torch, who else has memory of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from llmsys_exp.calibrate.device import kind_of
from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.look import Look, smi
from llmsys_exp.launch.sglang_ready import OLDEST_DRIVER, cuda_of
from planner.units import MIB

_SAY = Reporter("gpus")
HELD_MIB = 1024
"""Drivers take some hundred MiB of every card."""
_APPS = "--query-compute-apps=pid,used_memory"


def check(look: Look) -> Iterator[Finding]:
    """Look at the cards, their driver, and whether torch can use them."""
    if not look.gpus:
        yield _no_gpus(look)
        return
    for number, gpu in enumerate(look.gpus):
        yield _card(number, gpu)
        yield from _mode(number, gpu)
    yield from _held(look)
    yield from _slices(look)
    yield from _torch(look)


def _no_gpus(look: Look) -> Finding:
    if look.has_driver:
        said = "A driver's device file is here, and nvidia-smi is missing or fails"
        return _SAY.problem("nvidia-smi", said, "nvidia-smi; in a container: start it with --gpus all")
    return _SAY.note("none", "No GPU: nvidia-smi finds none; training runs with hardware=cpu", "")


def _card(number: int, gpu: Mapping[str, str]) -> Finding:
    name, total = gpu.get("name", "?"), _mib(gpu.get("memory.total"))
    told = f"GPU {number}: {name}, {gpu.get('memory.total')}, driver {gpu.get('driver_version')}"
    kind = kind_of(name, None if total is None else total * MIB)
    if kind:
        return _SAY.ok(f"gpu-{number}", f"{told}; hardware.gpu={kind}")
    fix = "hardware=l4 hardware.memory_gib=N with the nearest kind, or a row in planner/data/gpus.yaml"
    return _SAY.note(f"gpu-{number}", f"{told}: the planner has no row for it", fix)


def _mode(number: int, gpu: Mapping[str, str]) -> Iterator[Finding]:
    mode = gpu.get("compute_mode", "Default")
    fix = f"sudo nvidia-smi -i {number} -c DEFAULT"
    if mode == "Prohibited":
        yield _SAY.problem(f"mode-{number}", f"GPU {number} takes no process: compute mode {mode}", fix)
    elif mode.startswith("Exclusive"):
        yield _SAY.note(f"mode-{number}", f"GPU {number} takes one process at a time: no --pack", fix)


def _held(look: Look) -> Iterator[Finding]:
    """Memory that is taken now, by whomever."""
    for number, gpu in enumerate(look.gpus):
        used, total = _mib(gpu.get("memory.used")), _mib(gpu.get("memory.total"))
        if used is None or total is None or used <= HELD_MIB:
            continue
        holders = ", ".join(f"process {one['pid']} {one['used_memory']}" for one in smi(_APPS)[:4])
        said = f"{used:,} of {total:,} MiB of GPU {number} are taken" + (f": {holders}" if holders else "")
        fix = f"nvidia-smi; or plan beside it: hardware.in_use_gib={used / 1024:.1f}"
        yield _SAY.either(used > 0.9 * total, f"held-{number}", said, fix)


def _slices(look: Look) -> Iterator[Finding]:
    slices = [card for card in look.cards or () if card.is_slice]
    if slices:
        said = f"MIG is on: {len(slices)} slices; a job sees one of them"
        fix = "CUDA_VISIBLE_DEVICES=MIG-... from nvidia-smi -L, with hardware.memory_gib of the slice"
        yield _SAY.note("mig", said, fix)


def _torch(look: Look) -> Iterator[Finding]:
    version = look.packages.get("torch")
    if version is None:
        return
    cuda = cuda_of(version)
    if cuda is None:
        said = f"torch {version} is built without CUDA, and there are GPUs"
        yield _SAY.problem("torch-cuda", said, f"{look.python} -m pip install --force-reinstall torch")
        return
    driver = look.gpus[0].get("driver_version", "")
    match = re.match(r"\d+", driver)
    oldest = OLDEST_DRIVER.get(cuda)
    if match and oldest and int(match[0]) < oldest:
        said = f"Driver {driver} is too old for CUDA {cuda} of torch {version}: {oldest} or above"
        yield _SAY.problem("driver", said, "a newer driver, or a torch for an older CUDA")
    else:
        nccl = f", NCCL {look.told['nccl']}" if look.told.get("nccl") else ""
        yield _SAY.ok("driver", f"Driver {driver} goes with CUDA {cuda} of torch {version}{nccl}")


def _mib(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None
