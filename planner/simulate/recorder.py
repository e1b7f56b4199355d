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
from planner.tables import Gpu
from planner.tape.kernels import SCRATCH, Workspaces

aten = torch.ops.aten
GPU = "meta"
SOLE_OWNER = 2  # references to a storage: its one tensor, and the Python object at hand
SCALAR, ADD, ZEROS_LIKE = aten._local_scalar_dense.default, aten.add.Tensor, aten.zeros_like.default
ADDMM, SUM = aten.addmm.default, aten.sum.dim_IntList
SOFTMAX_BACKWARD = aten._softmax_backward_data.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
FLASH_ROWS = 128  # rows of a block: torch flash_attn `mha_bwd` rounds lengths up to it
PRODUCTS = (aten.mm.default, ADDMM, aten.bmm.default, aten.baddbmm.default)
ACTIVATIONS, FLASH = "activations", "attention scratch"
NOTHING = (None, None)


class Recorder(TorchDispatchMode):
    """A dispatch mode whose meta tensors take room in an arena.

    Args:
        arena: the simulated GPU's memory.
        workspace_bytes: what cuBLAS takes at the first product of a thread.
        card: the GPU, whose size decides what sums take for themselves; None: nothing.
        offloads: whether tensors as large as the model's lie in main memory.
        where: says what runs now, for who asks what an allocation was for; the name of a module.

    Attributes:
        stream: number of the stream that new storages belong to.
        backward: whether autograd runs now.
        starting: whether DeepSpeed's engine starts now.
        answer: what `bool(tensor)` says, since a meta tensor holds no values.
        label: the component that new storages count under.
        sharded: tensors of this type know how to run an operator on a rank's part.
        origins: of each buffer, by its number, the operator that made it and the module that ran.
    """

    def __init__(
        self,
        arena: Arena,
        workspace_bytes: int,
        *,
        card: Gpu | None = None,
        offloads: bool,
        where: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__()
        self.arena, self.where = arena, where
        self.workspaces = Workspaces(arena, workspace_bytes, card)
        self.host = Host(offloads=offloads)
        self.shapes = Shapes()
        self.stream = 0
        self.backward = self.starting = self.answer = False
        self.label = ACTIVATIONS
        self.origins: dict[int, tuple[Any, str]] = {}
        self._held: dict[int, tuple[Buffer | None, Any]] = {}  # by storage, with what notes its death
        self._elsewhere = False
        self.sharded: type | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled, so torch need not wrap each call to keep its compiler out."""
        return False

    def take(self, tensors: Iterable[torch.Tensor], made_by: Any = "") -> None:
        """Enter the storages of these tensors, each once, until they die."""
        for tensor in tensors:
            self._take(tensor, made_by)

    def _take(self, tensor: torch.Tensor, made_by: Any) -> None:
        if not tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._held:
            buffer = None if self._elsewhere else self._new(storage.nbytes(), made_by)
            # the callback is given the reference, which `pop` takes for its second argument
            self._held[key] = buffer, weakref.ref(storage, partial(self._held.pop, key))

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

    def give_back(self, tensor: torch.Tensor) -> None:
        """Give the memory of a storage back that lives on (`storage.resize_(0)`)."""
        self._resize(tensor, there=False)

    def take_again(self, tensor: torch.Tensor) -> None:
        """Take memory for a storage that had given it back."""
        self._resize(tensor, there=True)

    def _resize(self, tensor: torch.Tensor, *, there: bool) -> None:
        storage = tensor.untyped_storage()
        buffer, death = self._held[storage._cdata]
        if there != (buffer is not None):
            self._held[storage._cdata] = self._new(storage.nbytes(), "resize_") if there else None, death

    def rename(self, tensor: torch.Tensor, what: str) -> None:
        """Count the storage of a tensor under another component."""
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a sharded one this rank's part
        buffer, _ = self._held.get(tensor.untyped_storage()._cdata, NOTHING)
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
            one.id: partial(self._held.pop, key, None)
            for key, (one, _) in self._held.items()
            if one is not None
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.sharded is not None and any(issubclass(one, self.sharded) for one in types):
            return NotImplemented  # it comes again with the parts of this rank
        if func.is_view:
            out = func(*args, **kwargs)
        elif func is SCALAR and args[0].is_meta:
            return self._scalar(args[0])
        elif func is ADD and self.backward and not torch.is_grad_enabled():
            return self._add(args, kwargs)
        elif self.host.concerns(func, args, kwargs):
            out = self.host.run(func, args, kwargs)
        else:
            out = self.shapes.run(func, args, kwargs)
        if self.starting and func is ZEROS_LIKE and "device" in kwargs:
            return out  # DeepSpeed's own tensors of the meta device, which note shapes
        if isinstance(out, torch.Tensor):
            self._take(out, func)
        elif out is not None:
            self.take((x for x in tree_leaves(out) if isinstance(x, torch.Tensor)), func)
        self._within(func, args, out)
        return out

    def _scalar(self, tensor: torch.Tensor) -> Any:
        if tensor.dtype is torch.bool:
            return self.answer
        return 1.0 if tensor.dtype.is_floating_point else 0

    def _add(self, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Gradients that meet are added into the first of them, as autograd does where no mode looks on.

        Source: torch 2.13 `autograd/input_buffer.cpp: accumulate, can_accumulate_inplace`.
        """
        old, new = args
        plain = not kwargs and isinstance(new, torch.Tensor) and old.shape == new.shape
        if plain and torch._C._storage_Use_Count(old.untyped_storage()._cdata) == SOLE_OWNER:
            return old.add_(new)
        out = ADD(*args, **kwargs)
        self.take([out], "add")
        return out

    def _within(self, func: Any, args: Any, out: Any) -> None:
        """What kernels allocate within themselves, which no dispatcher sees."""
        if func in PRODUCTS:
            self.workspaces.use(backward=self.backward, biased=func is ADDMM)
        elif func is FLASH_BACKWARD:
            self._flash_scratch(args)
        elif func is SUM:
            self._sum(args, out)
        elif func is SOFTMAX_BACKWARD and args[0].is_meta:
            # gradient times output: torch 2.11 `native/cuda/SoftMax.cu: softmax_backward_cuda_out`
            self.arena.new(args[0].numel() * args[0].element_size(), SCRATCH)

    def _sum(self, args: Any, out: torch.Tensor) -> None:
        """A sum over outer dimensions, as of a bias's gradient: see `kernels.column_sum_bytes`."""
        x, over = args[:2]
        innermost = not over or -1 in over or x.dim() - 1 in over
        if x.is_meta and out.numel() and not innermost:
            self.workspaces.sum_columns(x.numel() // out.numel(), out.numel())

    def _flash_scratch(self, args: Any) -> None:
        """Of FlashAttention's backward pass.

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
