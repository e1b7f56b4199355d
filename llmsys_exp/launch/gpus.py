"""Which GPUs a job gets, so that CUDA_VISIBLE_DEVICES, the user and the launcher mean the same ones.

Numbers are those of nvidia-smi: workers get CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsys_exp.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
MIG = "MIG-"
_LISTED = re.compile(r"^\s*(?:GPU (\d+):|MIG .*?Device\s+\d+:).*\(UUID: ([^)]+)\)")
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""NVIDIA, AMD, and GPUs under Windows' Linux."""


@dataclass(frozen=True)
class Card:
    """One GPU, or a MIG slice of one."""

    index: int
    """Number of the GPU, also of the one that a slice belongs to."""
    uuid: str

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice."""
        return self.uuid.startswith(MIG)


def installed_cards() -> list[Card] | None:
    """Return what nvidia-smi lists; None where it is missing or fails, so that nothing is known."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_listing(done.stdout) if done.returncode == 0 else None


def parse_listing(text: str) -> list[Card]:
    """Read `nvidia-smi -L`: a line a GPU, its MIG slices indented below it."""
    cards: list[Card] = []
    for line in text.splitlines():
        match = _LISTED.match(line)
        if match is None:
            continue
        index = int(match[1]) if match[1] is not None else (cards[-1].index if cards else 0)
        cards.append(Card(index, match[2]))
    return cards


def machine_has_gpus() -> bool:
    """Whether a driver's device file is there; says nothing about how many."""
    return any(Path(file).exists() for file in _DEVICE_FILES)


def pick_gpus(
    count: int, *, asked: Sequence[int], env: Mapping[str, str], cards: Sequence[Card] | None
) -> tuple[str, ...]:
    """Return the GPUs of a node as entries of CUDA_VISIBLE_DEVICES.

    Args:
        count: how many the job needs.
        asked: `launcher.gpus`; empty takes the first visible ones.
        env: our environment, whose CUDA_VISIBLE_DEVICES is kept to.
        cards: what is installed; None where that is not known.

    Raises:
        UserError: when there are not as many, or one that is asked for is hidden or absent.
    """
    visible = visible_entries(env, cards)
    if asked:
        return _asked(count, asked, visible, env, cards)
    if visible is None:
        return tuple(map(str, range(count)))
    if len(visible) < count:
        raise UserError(
            f"This job needs {count} GPUs of each node, and {_seen(visible, env)}",
            where="hardware.gpus_per_node",
            do=f"Set hardware.gpus_per_node={len(visible)}" if visible else "Set hardware=cpu",
        )
    picked = visible[:count]
    if count > 1 and any(entry.startswith(MIG) for entry in picked):
        raise UserError(
            f"This job needs {count} GPUs, and {VISIBLE} names MIG slices",
            where=f"{VISIBLE}={env.get(VISIBLE, '')}",
            why="CUDA shows a process one slice, so ranks on several slices cannot meet",
            do="Set hardware.gpus_per_node=1",
        )
    return picked


def visible_entries(env: Mapping[str, str], cards: Sequence[Card] | None) -> tuple[str, ...] | None:
    """Return what CUDA would show, first to last; None where neither variable nor cards tell.

    As CUDA does, the list ends at the first entry that names nothing.
    """
    wholes = None if cards is None else [card for card in cards if not card.is_slice]
    if VISIBLE not in env:
        return None if wholes is None else tuple(str(card.index) for card in wholes)
    entries: list[str] = []
    for entry in (part.strip() for part in env[VISIBLE].split(",")):
        known = _exists(entry, cards)
        if not known:
            break
        entries.append(entry)
    return tuple(entries)


def as_indices(gpus: Sequence[str], cards: Sequence[Card] | None) -> tuple[str, ...] | None:
    """Return the same GPUs as numbers; None where one is a slice or unknown."""
    numbers: list[str] = []
    for entry in gpus:
        if entry.isdigit():
            numbers.append(entry)
            continue
        found = [card for card in cards or () if card.uuid.startswith(entry) and not card.is_slice]
        if len(found) != 1:
            return None
        numbers.append(str(found[0].index))
    return tuple(numbers)


def _exists(entry: str, cards: Sequence[Card] | None) -> bool:
    if entry.isdigit():
        return cards is None or any(card.index == int(entry) for card in cards)
    if not entry.startswith(("GPU-", MIG)):
        return False
    # drivers before R470 name slices by GPU and instance, which the listing does not show
    if cards is None or entry.startswith("MIG-GPU-"):
        return True
    return any(card.uuid.startswith(entry) for card in cards)


def _asked(
    count: int,
    asked: Sequence[int],
    visible: tuple[str, ...] | None,
    env: Mapping[str, str],
    cards: Sequence[Card] | None,
) -> tuple[str, ...]:
    if len(asked) != count or len(set(asked)) != len(asked):
        raise UserError(
            f"launcher.gpus names {len(set(asked))} GPUs and the job uses {count} of each node",
            where=f"launcher.gpus={list(asked)}",
            do=f"Set hardware.gpus_per_node={len(set(asked))}, or name {count}, each once",
        )
    if visible is None and min(asked) >= 0:
        return tuple(map(str, asked))
    visible = visible or ()
    numbers = as_indices(visible, cards) or visible
    for index in asked:
        if str(index) not in numbers:
            raise UserError(
                f"launcher.gpus names GPU {index}, and {_seen(visible, env)}",
                where=f"launcher.gpus={list(asked)}",
                do=f"Change {VISIBLE}, or name others" if VISIBLE in env else "Name others",
            )
    return tuple(map(str, asked))


def _seen(visible: Sequence[str], env: Mapping[str, str]) -> str:
    shown = f" ({VISIBLE}={env[VISIBLE]})" if VISIBLE in env else ""
    if not visible:
        return f"none is visible{shown}"
    return f"{len(visible)} {'is' if len(visible) == 1 else 'are'} visible{shown}: {', '.join(visible)}"
