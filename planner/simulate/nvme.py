"""DeepSpeed's offload to NVMe: its own swapping code over a disk that keeps nothing.

Source: DeepSpeed 0.19.8 `runtime/swap_tensor/`; what its handle offers is `csrc/aio/py_lib/py_ds_aio.cpp`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from planner.host import WEIGHT_BUFFER
from planner.training_case import TrainingCase

NVME = "nvme"
SWAPPERS = ("partitioned_optimizer_swapper", "pipelined_optimizer_swapper", "partitioned_param_swapper")


class _Handle:
    """Reads and writes that are done at once; it knows which tensors are page-locked."""

    def __init__(self, **_: Any) -> None:
        self._pending = 0

    _locked: dict[int, torch.Tensor] = {}  # noqa: RUF012 - one for all handles, as in DeepSpeed

    def new_cpu_locked_tensor(self, numel: int, example: torch.Tensor) -> torch.Tensor:
        """A page-locked tensor of the type of another one."""
        tensor = torch.empty(numel, dtype=example.dtype, device="cpu")
        self._locked[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Give it back."""
        return self._locked.pop(tensor.untyped_storage().data_ptr(), None) is not None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it, or what it is a view of, is page-locked."""
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in self._locked

    def async_pread(self, buffer: torch.Tensor, path: str, offset: int) -> int:
        """Start a transfer."""
        self._pending += 1
        return 0

    async_pwrite = async_pread

    def wait(self) -> int:
        """How many transfers have been waited for."""
        done, self._pending = self._pending, 0
        return done


class _Builder:
    """DeepSpeed's `AsyncIOBuilder`, which would compile an extension."""

    def load(self, verbose: bool = True) -> Any:
        return self

    aio_handle = _Handle


def _largest_numel(case: TrainingCase) -> int:
    """Room for any weight: DeepSpeed wants a buffer to hold one, and llmsys makes it as large.

    The buffers lie in main memory, which is worked out by formula (`planner/host.py`).
    """
    arch = case.architecture
    experts = 1 if arch.experts is None else arch.experts.count
    return max(WEIGHT_BUFFER, arch.hidden * max(arch.vocab, 4 * arch.ffn * experts))


@contextmanager
def swapping(case: TrainingCase, ds_config: MutableMapping[str, Any]) -> Iterator[None]:
    """Let DeepSpeed swap, where a case asks for it; its folders are made in one that goes afterwards.

    Args:
        case: the job.
        ds_config: DeepSpeed's configuration, which is told where.
    """
    zero = ds_config["zero_optimization"]
    asked = [key for key in ("offload_optimizer", "offload_param") if getattr(case, key) == NVME]
    if not asked:
        yield
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="llmsys-nvme-"))
        for key in asked:
            zero[key]["nvme_path"] = folder
            if key == "offload_param":
                zero[key].setdefault("buffer_size", _largest_numel(case))
        for name in SWAPPERS:
            module = import_module(f"deepspeed.runtime.swap_tensor.{name}")
            stack.enter_context(mock.patch.object(module, "AsyncIOBuilder", _Builder))
        stack.callback(_Handle._locked.clear)
        yield
