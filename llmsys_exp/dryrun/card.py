"""The GPU that a dry run takes: what is free of it, and who else is on it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmsys_exp.calibrate.device import kind_of
from llmsys_exp.errors import UserError
from llmsys_exp.evidence import nvml
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.gpus import smi_table
from llmsys_exp.launch.gpus import installed_cards, machine_has_gpus, pick_gpus
from planner.units import GIB, MIB, gib

IDLE_BYTES = GIB
"""A driver takes some hundred MiB of a card that nobody uses; a container hides who takes more."""
MORE_LOOKS, LOOK_AGAIN_S = 4, 0.5
SHARED = "--allow-shared"


@dataclass(frozen=True)
class Card:
    """One GPU now.

    Attributes:
        entry: what CUDA_VISIBLE_DEVICES calls it.
        name: as the driver says.
        holders: process -> bytes, as far as the driver tells.
    """

    entry: str
    name: str
    total_bytes: int
    free_bytes: int
    holders: Mapping[int, int]

    @property
    def kind(self) -> str:
        """Its row in the planner's table; empty where it has none."""
        return kind_of(self.name, self.total_bytes)

    @property
    def is_taken(self) -> bool:
        """Whether somebody else uses it."""
        return bool(self.holders) or self.total_bytes - self.free_bytes > IDLE_BYTES


def find_card(asked: list[int], *, wanted: str, shared: bool = False) -> Card:
    """Return the first GPU that may be used, seen to be free.

    Args:
        asked: `launcher.gpus`, of which the first is taken.
        wanted: `hardware.gpu`, for messages.
        shared: take it although others use it.

    Raises:
        UserError: where there is none, nobody can say what is free, or others use it.
    """
    cards = installed_cards()
    if cards is None and not machine_has_gpus():
        raise UserError(
            "A dry run needs a GPU, and this machine has none",
            where=f"hardware.gpu={wanted}",
            do="Run it where one is, or set hardware=cpu; tiers formula and estimate need none",
        )
    (entry,) = pick_gpus(1, asked=asked[:1], env=os.environ, cards=cards)
    card = look_at(entry)
    for _ in range(MORE_LOOKS):  # a process that has just ended gives its memory back a moment later
        if shared or not card.is_taken:
            break
        time.sleep(LOOK_AGAIN_S)
        card = look_at(entry)
    if card.is_taken and not shared:
        who = ", ".join(f"process {pid}: {gib(size):.1f} GiB" for pid, size in card.holders.items())
        raise UserError(
            f"GPU {entry} is in use: {gib(card.total_bytes - card.free_bytes):.1f} GiB are taken",
            where=who or "by whom, the driver does not say",
            why="Memory that others take or free meanwhile would look like the job's limit",
            do=f"Name a free one with launcher.gpus=[N], wait, or go on all the same with {SHARED}",
        )
    return card


def look_at(entry: str) -> Card:
    """Ask the driver about one GPU.

    Raises:
        UserError: when neither NVML nor nvidia-smi answers.
    """
    try:
        with nvml.opened() as library:
            return _from_nvml(library, entry)
    except Exception as error:  # whatever NVML lacks, nvidia-smi is asked
        card = _from_smi(entry)
        if card is None:
            raise UserError(
                f"Nobody says how much of GPU {entry} is free",
                where="nvidia-smi",
                why=str(error),
                do="Run `llmsys doctor`, which says what is wrong with the driver",
            ) from error
        return card


def _from_nvml(library: Any, entry: str) -> Card:
    if entry.isdigit():
        handle = library.nvmlDeviceGetHandleByIndex(int(entry))
    else:
        handle = library.nvmlDeviceGetHandleByUUID(entry)
    memory = library.nvmlDeviceGetMemoryInfo(handle)
    running = library.nvmlDeviceGetComputeRunningProcesses(handle)
    return Card(
        entry,
        nvml.text(library.nvmlDeviceGetName(handle)),
        int(memory.total),
        int(memory.free),
        {one.pid: int(one.usedGpuMemory or 0) for one in running if one.pid != os.getpid()},
    )


def _from_smi(entry: str) -> Card | None:
    rows = _smi(entry, "--query-gpu=name,memory.total,memory.free")
    if len(rows) != 1 or len(rows[0]) != 3 or not (rows[0][1].isdigit() and rows[0][2].isdigit()):
        return None
    name, total, free = rows[0]
    apps = _smi(entry, "--query-compute-apps=pid,used_memory")
    holders = {int(pid): int(used) * MIB for pid, used in apps if pid.isdigit() and used.isdigit()}
    return Card(entry, name, int(total) * MIB, int(free) * MIB, holders)


def _smi(entry: str, query: str) -> list[list[str]]:
    try:
        return smi_table(query, "-i", entry)
    except EvidenceError:
        return []
