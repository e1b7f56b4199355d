"""Count the storages that a PyTorch program makes and frees, on the meta device: shapes only, no arithmetic."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
SOLE_OWNER = 2  # references to a storage: its one tensor, and the Python object at hand
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
FLASH_ROWS = 128  # rows of a block: torch flash_attn `mha_bwd` rounds lengths up to it


class Meter(TorchDispatchMode):
    """A dispatch mode that knows how many bytes are alive.

    Args:
        answer: what `bool(tensor)` says, since a meta tensor holds no values.
    """

    def __init__(self, *, answer: bool) -> None:
        super().__init__()
        self.answer = answer
        self.live_bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}

    def take(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of these tensors, each once, until they die."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._sizes:
                self._sizes[key] = storage.nbytes()
                self.live_bytes += storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                weakref.finalize(storage, self._give, key)

    def _give(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key)

    def forget_peak(self) -> None:
        """Start a phase."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return self.answer
        if func is aten.add.Tensor and not torch.is_grad_enabled():
            return self._add(args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        self.take(x for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        if func is FLASH_BACKWARD:
            self._flash_scratch(args)
        return out

    def _add(self, args: Any, kwargs: Any) -> Any:
        """Gradients that meet are added in place, which autograd does not do while a mode looks on.

        Source: torch 2.13 `autograd/input_buffer.cpp: can_accumulate_inplace`.
        """
        old, new = args
        if kwargs or not isinstance(new, torch.Tensor) or old.shape != new.shape:
            out = aten.add.Tensor(*args, **kwargs)
            self.take([out])
            return out
        for target, other in ((old, new), (new, old)):
            if torch._C._storage_Use_Count(target.untyped_storage()._cdata) == SOLE_OWNER:
                return target.add_(other)
        out = aten.add.Tensor(old, new)
        self.take([out])
        return out

    def _flash_scratch(self, args: Any) -> None:
        """What the CUDA kernel allocates within itself, which no dispatcher sees.

        Source: torch 2.13 `transformers/cuda/flash_attn/flash_api.cpp: mha_bwd`: an fp32 accumulator for dq, row
        sums, and keys' and values' gradients once per query head.
        """
        query, key = args[1:3]
        batch, heads, length, width = query.shape
        rows = batch * heads * -(-length // FLASH_ROWS) * FLASH_ROWS
        held = [(rows * -(-width // 32) * 32, 4), (rows, 4)]
        if key.shape[1] != heads:
            held += [(batch * heads * length * width, query.element_size())] * 2
        scratch = sum(numel * itemsize for numel, itemsize in held)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + scratch)
