"""Answers for a CUDA device that is not there, whose tensors lie on torch's meta device."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from planner.simulate.recorder import GPU
from planner.units import MIB

CUDA = "cuda"
PROCESSORS = 132
_real_autocast = torch.autocast


class Stream:
    """A stream on which nothing runs; also an event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


class OnShapes(TorchFunctionMode):
    """Tensors for `cuda` are made on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(GPU)
        if "device" in kwargs:
            kwargs["device"] = _moved(kwargs["device"])
        if func is torch.Tensor.to or func is torch.get_device_module:
            args = tuple(_moved(one) for one in args) if func is torch.Tensor.to else args
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


def _moved(device: Any) -> Any:
    named = isinstance(device, (str, torch.device)) and str(device).partition(":")[0] == CUDA
    return GPU if named or (isinstance(device, int) and not isinstance(device, bool)) else device


def pretend(card: Mapping[str, Any], free_bytes: Callable[[], int]) -> None:
    """Let torch answer for a card, for the rest of the process.

    Args:
        card: its `name`, `capability` and `total_mib`.
        free_bytes: what is free on it at the moment of asking.
    """
    major, minor = card["capability"]
    total_bytes = card["total_mib"] * MIB
    about = types.SimpleNamespace(
        name=card["name"], major=major, minor=minor, total_memory=total_bytes,
        multi_processor_count=PROCESSORS, gcnArchName="", uuid="0", warp_size=32,
        shared_memory_per_block_optin=232_448, regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=2048,
    )  # fmt: skip
    torch.version.cuda = torch.version.cuda or "13.0"
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "get_device_name": lambda *_: about.name,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_properties": lambda *_: about,
        "mem_get_info": lambda *_: (free_bytes(), total_bytes),
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "ipc_collect": lambda: None,
        "current_stream": Stream,
        "Stream": Stream,
        "Event": Stream,
        "stream": lambda *_: nullcontext(),
        "device": lambda *_: nullcontext(),
        "is_current_stream_capturing": lambda: False,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.autocast = _autocast  # type: ignore[misc]


def _autocast(device_type: str, *args: Any, enabled: bool = True, **kwargs: Any) -> Any:
    """Autocast as on CUDA; model code asks for it with the device of its tensors, to turn it off."""
    return _real_autocast(CUDA, *args, **kwargs) if enabled else nullcontext()
