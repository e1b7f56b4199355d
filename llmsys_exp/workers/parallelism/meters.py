"""Measures bytes moved, bytes kept and time at work, each where it happens."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TCP_INFO_BYTES, BYTES_ACKED_AT, BYTES_SENT_AT = 256, 120, 200
"""`struct tcp_info` of Linux, `include/uapi/linux/tcp.h`: tcpi_bytes_acked and tcpi_bytes_sent."""
MOVES = {"allreduce_": "all-reduce", "all_reduce": "all-reduce", "send": "send"}
"""Operators of torch that send, and what they are called here."""


class Traffic:
    """What this rank hands to collectives and sends, and what its sockets really carried."""

    def __init__(self, *, on_sockets: bool) -> None:
        """Watch sockets too where the ranks talk over them; NCCL's links are not counted."""
        self._on_sockets = on_sockets
        self.payload_bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.wire_bytes: int | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count while the block runs; ranks wait for each other at both ends."""
        from torch import distributed

        distributed.barrier()
        before = sent_on_sockets() if self._on_sockets else None
        with self._mode():
            yield
        after = sent_on_sockets() if self._on_sockets else None
        self.wire_bytes = None if before is None or after is None else after - before
        distributed.barrier()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        counted = {"payload_bytes": dict(self.payload_bytes), "calls": dict(self.calls)}
        return {**counted, "wire_bytes": self.wire_bytes}

    def _mode(self) -> Any:
        from torch.distributed.tensor import DTensor
        from torch.utils._python_dispatch import TorchDispatchMode

        note = self._note

        class Watching(TorchDispatchMode):
            """Sees every operator of torch, those of `torch.distributed` among them."""

            def __torch_dispatch__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if any(issubclass(one, DTensor) for one in types):
                    return NotImplemented  # its own code comes first, and calls what is to be seen here
                note(function, args)
                return function(*args, **(kwargs or {}))

        return Watching()

    def _note(self, function: Any, arguments: Any) -> None:
        namespace, _, name = str(function).partition(".")
        kind = MOVES.get(name.partition(".")[0])
        if namespace not in ("c10d", "_c10d_functional") or kind is None:
            return
        tensors = arguments[0] if isinstance(arguments[0], (list, tuple)) else [arguments[0]]
        self.payload_bytes[kind] += sum(one.numel() * one.element_size() for one in tensors)
        self.calls[kind] += 1


def sent_on_sockets() -> int | None:
    """Bytes that this process has sent over TCP, as the kernel counts them; None where it does not tell."""
    total, told = 0, False
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                sent = _sent(one)
        except OSError:  # closed meanwhile, or no TCP socket
            continue
        told = told or sent is not None
        total += sent or 0
    return total if told else None


def _sent(one: socket.socket) -> int | None:
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        return None
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    place = BYTES_SENT_AT if len(info) >= BYTES_SENT_AT + 8 else BYTES_ACKED_AT
    return struct.unpack_from("=Q", info, place)[0] if len(info) >= place + 8 else None


class Kept:
    """Bytes that autograd keeps for backward, each storage once and without the weights."""

    def __init__(self, model: Any) -> None:
        self._weights = {_local(one).untyped_storage().data_ptr() for one in model.parameters()}
        self._sizes: dict[int, int] = {}

    @property
    def kept_bytes(self) -> int:
        """All of it; nothing is let go before the last forward pass of a step is done."""
        return sum(self._sizes.values())

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count while the block runs forward."""
        from torch.autograd.graph import saved_tensors_hooks

        with saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield

    def _pack(self, tensor: Any) -> Any:
        storage = _local(tensor).untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor


def held_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of this rank's part of each tensor; single numbers are left out."""
    local = [_local(one) for one in tensors if one is not None]
    return sum(one.numel() * one.element_size() for one in local if one.dim())


class Stopwatch:
    """Time at work: on the CPU by the clock, on a GPU by its own events."""

    def __init__(self, device: Any) -> None:
        self._on_gpu = device.type == "cuda"
        self._events: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of the block."""
        if not self._on_gpu:
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began
            return
        import torch

        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        yield
        pair[1].record()
        self._events.append(pair)

    def read(self) -> float:
        """Seconds so far; waits for the GPU."""
        for first, last in self._events:
            last.synchronize()
            self._seconds += first.elapsed_time(last) / 1000
        self._events.clear()
        return self._seconds


def _local(tensor: Any) -> Any:
    """This rank's part of a distributed tensor, or the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)
