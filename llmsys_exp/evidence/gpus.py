"""The GPUs of this machine: names, memory, driver and links, from NVML or else from nvidia-smi.

What NVML and the topology say is asked once a process: points of a sweep follow one another within seconds.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

from llmsys_exp.evidence import nvml
from llmsys_exp.evidence.errors import EvidenceError, noted

SMI_TIMEOUT_S = 30
_QUERY = ("index", "name", "memory.total", "uuid", "pci.bus_id", "driver_version")
_CODES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+")
_CUDA = re.compile(r"CUDA Version:\s*([\d.]+)")


def gpu_facts(gpus: Sequence[str], notes: list[str]) -> dict[str, Any]:
    """Return `gpus`, `driver`, `cuda_driver` (the newest CUDA that the driver takes) and `topology`.

    Args:
        gpus: entries of CUDA_VISIBLE_DEVICES that the run uses; those are marked `in_run`.
        notes: gets a line for each piece that is missing.
    """
    try:
        found = deepcopy(_from_nvml())
    except Exception as error:  # a driver that is broken in one place often answers nvidia-smi
        found = noted(notes, "GPUs", _from_smi, {"gpus": [], "driver": None, "cuda_driver": None})
        if not found["gpus"]:
            notes.append(f"GPUs: {error}")
    for card in found["gpus"]:
        card["in_run"] = str(card["index"]) in gpus or any(
            one and card["uuid"].startswith(one) for one in gpus
        )
    several = len(found["gpus"]) > 1
    found["topology"] = noted(notes, "topology", _topology, None) if several else None
    return found


def is_among(index: int, uuid: str, gpus: Sequence[str]) -> bool:
    """Whether entries of CUDA_VISIBLE_DEVICES, numbers or beginnings of names, name a GPU."""
    return any(one == str(index) or (one.startswith("GPU-") and uuid.startswith(one)) for one in gpus)


@lru_cache
def _from_nvml() -> dict[str, Any]:
    with nvml.opened() as library:
        handles = [library.nvmlDeviceGetHandleByIndex(one) for one in range(library.nvmlDeviceGetCount())]
        version = library.nvmlSystemGetCudaDriverVersion()
        return {
            "gpus": [_card(library, index, handle) for index, handle in enumerate(handles)],
            "driver": nvml.text(library.nvmlSystemGetDriverVersion()),
            "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
        }


def _card(library: Any, index: int, handle: Any) -> dict[str, Any]:
    def told(find: Callable[[Any], Any]) -> Any:
        try:
            return find(handle)
        except Exception:  # "not supported" on this kind of card
            return None

    limit_mw = told(library.nvmlDeviceGetPowerManagementLimit)
    capability = told(library.nvmlDeviceGetCudaComputeCapability)
    bus = told(library.nvmlDeviceGetPciInfo)
    return {
        "index": index,
        "name": nvml.text(library.nvmlDeviceGetName(handle)),
        "memory_bytes": int(library.nvmlDeviceGetMemoryInfo(handle).total),
        "uuid": nvml.text(library.nvmlDeviceGetUUID(handle)),
        "pci": nvml.text(bus.busId) if bus is not None else None,
        "compute_capability": None if capability is None else ".".join(map(str, capability)),
        "power_limit_w": None if limit_mw is None else limit_mw / 1000,
    }


def _from_smi() -> dict[str, Any]:
    rows = [dict(zip(_QUERY, cells, strict=False)) for cells in smi_table(f"--query-gpu={','.join(_QUERY)}")]
    rows = [row for row in rows if len(row) == len(_QUERY) and row["index"].isdigit()]
    cuda = _CUDA.search(_smi())
    return {
        "gpus": [
            {
                "index": int(row["index"]),
                "name": row["name"],
                # nvidia-smi counts in MiB
                "memory_bytes": int(row["memory.total"]) << 20 if row["memory.total"].isdigit() else None,
                "uuid": row["uuid"],
                "pci": row["pci.bus_id"],
            }
            for row in rows
        ],
        "driver": rows[0]["driver_version"] if rows else None,
        "cuda_driver": cuda[1] if cuda else None,
    }


@lru_cache
def _topology() -> dict[str, dict[str, str]]:
    return parse_topology(_smi("topo", "-m"))


def parse_topology(listing: str) -> dict[str, dict[str, str]]:
    """Read `nvidia-smi topo -m`: how each GPU reaches each other, such as NV18, PIX or SYS."""
    rows = [_CODES.sub("", line).split("\t") for line in listing.splitlines()]
    columns = next(
        ([cell.strip() for cell in row] for row in rows if len(row) > 1 and not row[0].strip()), []
    )
    links: dict[str, dict[str, str]] = {}
    for row in rows:
        name = row[0].strip()
        if not name.startswith("GPU") or len(row) < 2:
            continue
        cells = zip(columns[1:], (cell.strip() for cell in row[1:]), strict=False)
        links[name] = {
            to: link for to, link in cells if to.startswith("GPU") and to[3:].isdigit() and link != "X"
        }
    if not links:
        raise EvidenceError("nvidia-smi topo -m shows no GPU")
    return links


def smi_table(query: str, *more: str) -> list[list[str]]:
    """Return what nvidia-smi answers to a query, the cells of each row; sizes are in MiB.

    Raises:
        EvidenceError: when it is missing, fails or does not answer.
    """
    lines = _smi(query, "--format=csv,noheader,nounits", *more).splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def _smi(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EvidenceError(f"nvidia-smi: {getattr(error, 'strerror', None) or error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise EvidenceError(f"nvidia-smi: {lines[0] if lines else f'it ended with {done.returncode}'}")
    return done.stdout
