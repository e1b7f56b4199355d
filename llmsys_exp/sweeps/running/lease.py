"""Leases of GPUs or cores: machine-wide, for several commands at once, ended by the death of who holds one.

A holder is a locked file below a folder of the user's; its lock passes to the job that is started with it. A
file that nobody locks is a holder that is gone. Several small jobs share a card if each says what it needs.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from llmsys_exp.errors import UserError
from llmsys_exp.launch.gpus import VISIBLE, Card, installed_cards, machine_has_gpus, visible_entries
from llmsys_exp.runs.files import disk_errors

MIB = 1 << 20
FREE_CARD_BYTES = 1 << 30
"""A card with more than this taken and no lease on it is somebody else's; drivers take some of every card."""


@dataclass(frozen=True)
class Slot:
    """One thing that can be leased."""

    name: str
    """`core-3`, or `gpu-` and what CUDA_VISIBLE_DEVICES calls the card."""
    value: str
    capacity_bytes: int | None = None
    """Memory of a card; None where it cannot be shared."""


@dataclass
class Lease:
    """What one job has; held until it is released, and by whoever inherits `descriptors`."""

    slots: tuple[Slot, ...]
    descriptors: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """Return the names of what is leased, for the ledger."""
        return [slot.name for slot in self.slots]

    def release(self) -> None:
        """Let go of it here; a job that was started with it still holds it."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


class Leases:
    """The leases of this machine, as one command sees them."""

    def __init__(
        self,
        slots: Sequence[Slot],
        folder: Path | None = None,
        *,
        host_bytes: int | None = None,
        used_bytes: Callable[[], dict[str, int]] | None = None,
    ) -> None:
        """Take part in leasing.

        Args:
            slots: what there is.
            folder: where holders are; None: one for each user.
            host_bytes: main memory that jobs share; None: it is not looked at.
            used_bytes: tells what is taken now of each slot, whoever takes it; None: not asked.
        """
        self.slots = tuple(slots)
        self._host = None if host_bytes is None else Slot("host", "", host_bytes)
        self._folder, self._used_bytes = folder or runtime_folder(), used_bytes
        with disk_errors(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def acquire(
        self, count: int, memory_bytes: int | None = None, host_bytes: int | None = None
    ) -> Lease | None:
        """Lease `count` slots, or return None while they are not free.

        Args:
            count: how many.
            memory_bytes: what a job needs of each; it shares cards then with others that say so. None: alone.
            host_bytes: what it takes of main memory; it waits until that is free beside what others said, but
                never where it would be the first. None: unknown.

        Raises:
            UserError: when there will never be as many.
        """
        self.check(count)
        with self._only_one():
            used = self._used_bytes() if self._used_bytes is not None and count else {}
            free = [slot for slot in self.slots if self._has_room(slot, memory_bytes, used.get(slot.name, 0))]
            host = self._host if host_bytes is not None else None
            if len(free) < count or (host is not None and not self._has_host_room(host, host_bytes or 0)):
                return None
            chosen = tuple(free[:count])
            held = [self._hold(slot, memory_bytes) for slot in chosen]
            held += [] if host is None else [self._hold(host, host_bytes)]
            return Lease(chosen, tuple(held))

    def check(self, count: int) -> None:
        """Refuse a number that is never available here."""
        if count > len(self.slots):
            what = "cores" if all(slot.name.startswith("core-") for slot in self.slots) else "GPUs"
            raise UserError(
                f"A job of this sweep needs {count} {what}, and this machine offers {len(self.slots)}",
                do="Ask for fewer with hardware.gpus_per_node, or run it on a larger machine",
            )

    def _has_room(self, slot: Slot, memory_bytes: int | None, used_bytes: int) -> bool:
        held = self._held(slot)
        if not held:
            is_foreign = used_bytes > FREE_CARD_BYTES
            too_large = None not in (memory_bytes, slot.capacity_bytes) and memory_bytes > slot.capacity_bytes
            return not is_foreign and not too_large
        if memory_bytes is None or slot.capacity_bytes is None or None in held:
            return False
        # jobs that take more than they said, and others beside them, count by what is really taken
        taken = max(sum(one or 0 for one in held), used_bytes)
        return taken + memory_bytes <= slot.capacity_bytes

    def _has_host_room(self, host: Slot, host_bytes: int) -> bool:
        held = self._held(host)
        return not held or sum(one or 0 for one in held) + host_bytes <= (host.capacity_bytes or 0)

    def _held(self, slot: Slot) -> list[int | None]:
        """Return what each living holder of a slot takes of it; what dead ones left is removed."""
        held: list[int | None] = []
        for path in self._folder.glob(f"{slot.name}@*"):
            with suppress(FileNotFoundError):
                if is_locked(path):
                    held.append(json.loads(path.read_text(encoding="utf-8")))
                else:
                    path.unlink()
        return held

    def _hold(self, slot: Slot, memory_bytes: int | None) -> int:
        path = self._folder / f"{slot.name}@{uuid.uuid4().hex[:12]}"
        with disk_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, json.dumps(memory_bytes).encode())
        return descriptor

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """Let one command choose at a time: two that each hold half of what they need would wait for ever."""
        path = self._folder / "choosing"
        with disk_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def runtime_folder() -> Path:
    """Return where holders of this user are: the same for every command, and gone after a restart."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base) / "llmsys-leases"
    return Path(tempfile.gettempdir()) / f"llmsys-leases-{os.getuid()}"


def leases_here() -> Leases:
    """Return the leases of this machine: of its visible GPUs, or of its cores where it has none."""
    cards = installed_cards()
    entries = visible_entries(os.environ, cards) if cards or machine_has_gpus() else ()
    if not entries:
        return Leases(core_slots(), host_bytes=host_memory_bytes())
    slots = gpu_slots(entries, cards or (), memory_table())
    return Leases(slots, host_bytes=host_memory_bytes(), used_bytes=used_by_slot)


def host_memory_bytes() -> int:
    """Return the main memory that jobs of this machine may share."""
    return psutil.virtual_memory().total


def core_slots() -> tuple[Slot, ...]:
    """Return the cores that this process may use."""
    return tuple(Slot(f"core-{core}", str(core)) for core in sorted(os.sched_getaffinity(0)))


def gpu_slots(
    entries: Sequence[str], cards: Sequence[Card], memory: dict[str, tuple[int, int]]
) -> tuple[Slot, ...]:
    """Return the cards that entries of CUDA_VISIBLE_DEVICES name.

    Args:
        entries: numbers or UUIDs.
        cards: what is installed.
        memory: UUID -> bytes of the card and bytes taken.
    """
    uuid_of = {str(card.index): card.uuid for card in cards if not card.is_slice}
    names = [uuid_of.get(entry, entry) for entry in entries]
    return tuple(
        Slot(f"gpu-{name}", entry, memory.get(name, (None, 0))[0])
        for name, entry in zip(names, entries, strict=True)
    )


def memory_table() -> dict[str, tuple[int, int]]:
    """Return bytes of each card and bytes taken of it, as nvidia-smi tells; empty where it does not."""
    if shutil.which("nvidia-smi") is None:
        return {}
    query = ["nvidia-smi", "--query-gpu=uuid,memory.total,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    table: dict[str, tuple[int, int]] = {}
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            table[parts[0]] = (int(parts[1]) * MIB, int(parts[2]) * MIB)
    return table


def used_by_slot() -> dict[str, int]:
    """Return the bytes that are taken of each card now, by the name of its slot."""
    return {f"gpu-{name}": used for name, (_, used) in memory_table().items()}


def variables(lease: Lease) -> dict[str, str]:
    """Return the environment that shows a job its cards and no others; nothing for cores."""
    gpus = [slot.value for slot in lease.slots if slot.name.startswith("gpu-")]
    return {VISIBLE: ",".join(gpus)} if gpus else {}


def cores(lease: Lease) -> set[int]:
    """Return the cores of a lease; empty for GPUs."""
    return {int(slot.value) for slot in lease.slots if slot.name.startswith("core-")}


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
