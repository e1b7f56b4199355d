"""Sees every operator that a program runs on the meta device and enters its storages in an arena."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.memory.arena import Arena, Buffer
from planner.simulate.host import Host
from planner.simulate.shapes import Shapes
from planner.tape.autograd import Workspaces

aten = torch.ops.aten
GPU = "meta"
SOLE_OWNER = 2  # references to a storage: its one tensor, and the Python object at hand
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
FLASH_ROWS = 128  # rows of a block: torch flash_attn `mha_bwd` rounds lengths up to it
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
ACTIVATIONS, FLASH = "activations", "attention scratch"


class Recorder(TorchDispatchMode):
    """A dispatch mode whose meta tensors take room in an arena.

    Args:
        arena: the simulated GPU's memory.
        workspace_bytes: what cuBLAS takes at the first product of a thread.
        offloads: whether tensors as large as the model's lie in main memory.
        where: says what runs now, for who asks what an allocation was for; the name of a module.

    Attributes:
        stream: number of the stream that new storages belong to.
        backward: whether autograd runs now.
        starting: whether DeepSpeed's engine starts now.
        answer: what `bool(tensor)` says, since a meta tensor holds no values.
        label: the component that new storages count under.
        origins: of each buffer, by its number, the operator that made it and the module that ran.
    """

    def __init__(
        self, arena: Arena, workspace_bytes: int, *, offloads: bool, where: Callable[[], str] = lambda: ""
    ) -> None:
        super().__init__()
        self.arena, self.where = arena, where
        self.workspaces = Workspaces(arena, workspace_bytes)
        self.host = Host(offloads=offloads)
        self.shapes = Shapes()
        self.stream = 0
        self.backward = self.starting = self.answer = False
        self.label = ACTIVATIONS
        self.origins: dict[int, tuple[Any, str]] = {}
        self._held: dict[int, Buffer | None] = {}
        self._elsewhere = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled, so torch need not wrap each call to keep its compiler out."""
        return False

    def take(self, tensors: Iterable[torch.Tensor], made_by: Any = "") -> None:
        """Enter the storages of these tensors, each once, until they die."""
        for tensor in tensors:
            if tensor.device.type != GPU:
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._held:
                self._held[key] = None if self._elsewhere else self._new(storage.nbytes(), made_by)
                weakref.finalize(storage, self._held.pop, key, None)

    def _new(self, nbytes: int, made_by: Any) -> Buffer:
        buffer = self.arena.new(nbytes, self.label, stream=self.stream)
        self.origins[buffer.id] = (made_by, self.where())
        return buffer

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is made meanwhile lies outside the allocator for good: in unified or main memory."""
        self._elsewhere = True
        try:
            yield
        finally:
            self._elsewhere = False

    def rename(self, tensor: torch.Tensor, what: str) -> None:
        """Count the storage of a tensor under another component."""
        buffer = self._held.get(tensor.untyped_storage()._cdata)
        if buffer is not None:
            self.arena.rename(buffer, what)

    def same_origin(self, buffer_id: int, other: int) -> None:
        """Say that a buffer was made as another one was."""
        if other in self.origins:
            self.origins[buffer_id] = self.origins[other]

    def origin(self, buffer_id: int) -> tuple[str, str]:
        """The operator that made a buffer, and the module that ran; empty where neither is known."""
        func, module = self.origins.get(buffer_id, ("", ""))
        return str(getattr(func, "__name__", func)).partition(".")[0], module

    def held(self) -> dict[int, Callable[[], object]]:
        """Return for the number of each buffer that is there what gives it back ahead of its storage."""
        return {
            one.id: partial(self._held.pop, key, None) for key, one in self._held.items() if one is not None
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and args[0].device.type == GPU:
            return self._scalar(args[0])
        if func is aten.add.Tensor and self.backward and not torch.is_grad_enabled():
            return self._add(args, kwargs)
        if self.host.concerns(func, args, kwargs):
            out = self.host.run(func, args, kwargs)
        else:
            out = self.shapes.run(func, args, kwargs)
        if self.starting and func is aten.zeros_like.default and "device" in kwargs:
            return out  # DeepSpeed's own tensors of the meta device, which note shapes
        if isinstance(out, torch.Tensor):
            self.take((out,), func)
        elif out is not None:
            self.take((x for x in tree_leaves(out) if isinstance(x, torch.Tensor)), func)
        if func in PRODUCTS:
            self.workspaces.use(backward=self.backward)
        elif func is FLASH_BACKWARD:
            self._flash_scratch(args)
        return out

    def _scalar(self, tensor: torch.Tensor) -> Any:
        if tensor.dtype is torch.bool:
            return self.answer
        return 1.0 if tensor.dtype.is_floating_point else 0

    def _add(self, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Gradients that meet are added in place, which autograd does not do while a mode looks on.

        Source: torch 2.13 `autograd/input_buffer.cpp: can_accumulate_inplace`.
        """
        old, new = args
        if not kwargs and isinstance(new, torch.Tensor) and old.shape == new.shape:
            for target, other in ((old, new), (new, old)):
                if torch._C._storage_Use_Count(target.untyped_storage()._cdata) == SOLE_OWNER:
                    return target.add_(other)
        out = aten.add.Tensor(*args, **kwargs)
        self.take([out], "add")
        return out

    def _flash_scratch(self, args: Any) -> None:
        """What the CUDA kernel allocates within itself, which no dispatcher sees.

        Source: torch 2.13 `transformers/cuda/flash_attn/flash_api.cpp: mha_bwd`: an fp32 accumulator for dq,
        row sums, and keys' and values' gradients once per query head.
        """
        query, key = args[1:3]
        batch, heads, length, width = query.shape
        rows = batch * heads * -(-length // FLASH_ROWS) * FLASH_ROWS
        held = [(rows * -(-width // 32) * 32, 4), (rows, 4)]
        if key.shape[1] != heads:
            held += [(batch * heads * length * width, query.element_size())] * 2
        scratch = [self.arena.new(numel * itemsize, FLASH) for numel, itemsize in held]
        del scratch
