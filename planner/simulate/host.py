"""Main memory of the simulation: large tensors on the CPU get addresses that no operator touches.

What DeepSpeed offloads has the size of the real thing. An untouched page costs nothing, so such a tensor is
a mapping that reserves no memory; views of it are real views, and everything that would compute with it is
worked out on shapes.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
LARGE_BYTES = 1 << 20
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux; Python's mmap names it from 3.13 on


class Host:
    """Runs operators in which both devices take part and, where something is offloaded, large CPU tensors."""

    def __init__(self, *, offloads: bool) -> None:
        self._offloads = offloads

    def concerns(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether an operator reads or makes a tensor of main memory that must not be touched."""
        if func is aten._to_copy.default and args[0].device.type == "meta":
            return _type_of(kwargs.get("device")) == "cpu"
        if func is aten.copy_.default:
            return args[0].device != args[1].device or _is_large(args[0])
        if not self._offloads:
            return False
        if _type_of(kwargs.get("device")) == "cpu" and not any(True for _ in _tensors(args)):
            return _numel(args) * 4 >= LARGE_BYTES
        return any(_is_large(one) for one in _tensors((args, kwargs)))

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run a view for real, leave a change in place out, and give a result its room only."""
        schema = func._schema
        if func.is_view or schema.name in _VIEWS:
            return func(*args, **kwargs)
        if schema.is_mutable:
            return _changed(schema, args, kwargs)
        if func is aten._local_scalar_dense.default:
            return 0
        wants_cpu = _type_of(kwargs.get("device")) == "cpu"
        to_cpu = wants_cpu or ("device" not in kwargs and any(_is_cpu(x) for x in _tensors((args, kwargs))))
        on_meta = tree_map_only(torch.Tensor, _shape_of, (args, dict(kwargs)))
        if "device" in on_meta[1]:
            on_meta[1]["device"] = torch.device("meta")
        on_meta[1].pop("pin_memory", None)
        out = func(*on_meta[0], **on_meta[1])
        return tree_map_only(torch.Tensor, _room, out) if to_cpu else out


_VIEWS = ("aten::detach", "aten::alias", "aten::set_.source_Tensor")


def _changed(schema: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What an operator returns that changes its arguments: those."""
    given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | dict(kwargs)
    written = [given[one.name] for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    return written[0] if len(schema.returns) == 1 else tuple(written) if schema.returns else None


def _tensors(tree: Any) -> Any:
    for one in tree:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (tuple, list)):
            yield from _tensors(one)
        elif isinstance(one, dict):
            yield from _tensors(one.values())


def _is_cpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _is_large(tensor: torch.Tensor) -> bool:
    return _is_cpu(tensor) and tensor.untyped_storage().nbytes() >= LARGE_BYTES


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    if not _is_cpu(tensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _room(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of main memory of the same shape, whose pages are not there before they are touched."""
    nbytes = tensor.untyped_storage().nbytes()
    if nbytes < LARGE_BYTES:
        # `zero.Init` has changed where tensors are made that name no device
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    flat = torch.frombuffer(pages, dtype=torch.uint8).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


def _type_of(device: Any) -> str:
    return "" if device is None else torch.device(device).type


def _numel(args: Any) -> int:
    """Elements that a factory function is asked for."""
    size = args[0] if args and isinstance(args[0], (list, tuple, torch.Size)) else ()
    numel = 1
    for one in size:
        numel *= int(one)
    return numel
