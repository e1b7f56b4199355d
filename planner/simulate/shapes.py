"""Results of operators on the meta device, remembered by the shapes that went in.

Torch works most of them out in Python, which takes longer than everything else of a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from typing import Any

import torch

META = torch.device("meta")
_METADATA = frozenset(
    {"resize_", "resize_as_", "set_", "transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "detach_"}
)
"""Operators in place that change more than values."""


class _Kind(Enum):
    """What an operator does, as its schema says."""

    changes = auto()  # values of its first argument, which it returns
    changes_lists = auto()  # values of lists of tensors; returns nothing
    makes = auto()  # tensors that share no memory with its arguments
    other = auto()


class Shapes:
    """Runs operators; those that work on the CPU run as they are."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._kinds: dict[int, _Kind] = {}  # an operator hashes itself in Python; `_kind` keeps it alive

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """What the operator returns; a change of values is none on this device."""
        kind = self._kinds.get(id(func))
        if kind is None:
            kind = self._kinds[id(func)] = _kind(func)
        if kind is _Kind.changes:
            return self._changed(func, args, kwargs)
        if kind is _Kind.changes_lists:
            return None if args[0][0].is_meta else func(*args, **kwargs)
        if kind is _Kind.other:
            return func(*args, **kwargs)
        return self._made(func, args, kwargs)

    def _changed(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Let torch check shapes that it has not seen yet."""
        if not args[0].is_meta:
            return func(*args, **kwargs)
        try:
            key = (id(func), _key(args), _key(tuple(kwargs.items())) if kwargs else None)
            if key in self._known:
                return args[0]
        except TypeError:  # an argument that cannot be remembered
            return func(*args, **kwargs)
        self._known[key] = NotImplemented
        return func(*args, **kwargs)

    def _made(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        try:
            key = (id(func), _key(args), _key(tuple(kwargs.items())) if kwargs else None)
            known = self._known.get(key)
        except TypeError:  # an argument that cannot be remembered
            return func(*args, **kwargs)
        if known is None:
            out = func(*args, **kwargs)
            self._known[key] = _described(out, args)
            return out
        if known is NotImplemented:
            return func(*args, **kwargs)
        if isinstance(known, list):
            return tuple(None if one is None else _new(one) for one in known)
        return _new(known)


@cache
def _kind(func: Any) -> _Kind:
    schema = func._schema
    name = schema.name.partition("::")[2]
    if func.is_view or func.namespace != "aten":
        return _Kind.other
    if schema.is_mutable:
        if not schema.returns and name.startswith(("_foreach_", "_fused_")):
            return _Kind.changes_lists
        first, alone = schema.arguments[0], len(schema.returns) == 1
        in_place = alone and first.alias_info is not None and first.alias_info.is_write
        in_place = in_place and name.endswith("_") and not name.endswith("__") and name not in _METADATA
        return _Kind.changes if in_place else _Kind.other
    makes = schema.returns and all(
        str(one.type) == "Tensor" and one.alias_info is None for one in schema.returns
    )
    return _Kind.makes if makes else _Kind.other


def _key(value: Any) -> Any:
    """Something to remember arguments by: of tensors all but their values."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.is_meta
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    return type(value), value


def _described(out: Any, args: Any) -> Any:
    """Sizes, strides and type of each tensor; NotImplemented where one is none of its own."""
    several = isinstance(out, (tuple, list))
    tensors = list(out) if several else [out]
    given = {one.untyped_storage()._cdata for one in _flat(args)}
    found: list[Any] = []
    for one in tensors:
        if one is None:
            found.append(None)
            continue
        own = isinstance(one, torch.Tensor) and one.is_meta and one.storage_offset() == 0
        if not own or one.untyped_storage()._cdata in given:
            return NotImplemented
        if (
            one.untyped_storage().nbytes()
            != torch._prims_common.compute_required_storage_length(one.shape, one.stride(), 0)
            * one.element_size()
        ):
            return NotImplemented
        found.append((one.shape, one.stride(), one.dtype))
    return found if several else found[0]


def _flat(args: Any) -> Any:
    for one in args:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (tuple, list)):
            yield from _flat(one)


def _new(described: Any) -> torch.Tensor:
    shape, stride, dtype = described
    return torch.empty_strided(shape, stride, dtype=dtype, device=META)
