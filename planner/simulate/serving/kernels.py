"""Stands in for SGLang's compiled kernels: allocates what they allocate, computes nothing.

Source: sglang-kernel 0.4.5 `sgl_kernel/elementwise.py`, `moe.py`, `sampling.py`; flashinfer 0.6.15
`sampling.py`. Kernels that are compiled at their first use (Triton's, SGLang's own) write where they are told
and allocate nothing, so that their launches are left out.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable
from functools import partial, update_wrapper
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from planner.simulate.recorder import Recorder

ALWAYS = ("sgl_kernel", "flashinfer", "torchvision")
IF_MISSING = ("cuda", "cutlass", "deep_gemm", "helion", "quack", "tilelang", "torchaudio")


def _normed(x: torch.Tensor, weight: Any, eps: float = 0.0, out: Any = None, **_: Any) -> torch.Tensor:
    return torch.empty_like(x) if out is None else out


def _halved(x: torch.Tensor, out: Any = None, **_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2)) if out is None else out


def _renormed(probs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(probs.float())


def _sampled(probs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    probs = probs.float()
    return torch.empty(probs.shape[0], dtype=torch.int32, device=probs.device)


def _in_place(*_: Any, **__: Any) -> None:
    """Writes into what it is given."""


STAND_INS: dict[str, Callable[..., Any]] = {
    "rmsnorm": _normed,
    "gemma_rmsnorm": _normed,
    "fused_add_rmsnorm": _in_place,
    "gemma_fused_add_rmsnorm": _in_place,
    "silu_and_mul": _halved,
    "gelu_and_mul": _halved,
    "gelu_tanh_and_mul": _halved,
    "topk_softmax": _in_place,
    "topk_sigmoid": _in_place,
    "moe_align_block_size": _in_place,
    "moe_sum": _in_place,
    "moe_sum_reduce": _in_place,
    "top_k_renorm_prob": _renormed,
    "top_p_renorm_prob": _renormed,
    "min_p_sampling_from_probs": _sampled,
    "top_k_top_p_sampling_from_probs": _sampled,
    "is_arch_support_pdl": lambda: True,
}


BODIES: dict[str, Callable[..., Any]] = {}
"""Operators that SGLang makes of functions of Python, which allocate: by qualified name."""


class NoStandIn(NotImplementedError):
    """A compiled kernel was called that nothing stands in for."""


class _Name(type):
    """Any name of a package that is not there: it may be looked at and derived from.

    It may be called while SGLang is imported, as a decorator or a factory; afterwards a kernel would run.
    """

    running = False

    def __getattr__(cls, name: str) -> Any:
        return _named(name)

    def __call__(cls, *args: Any, **_: Any) -> Any:
        if _Name.running:
            raise NoStandIn(f"kernel {cls.__name__} has no stand-in")
        return args[0] if len(args) == 1 and isinstance(args[0], types.FunctionType) else cls


def _named(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return STAND_INS.get(name) or _Name(name, (), {})


class _Finder:
    """Makes these packages importable with everything below them, also where the real ones are installed."""

    packages: tuple[str, ...] = ALWAYS

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in _Finder.packages:
            return None
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__, module.__version__ = [], "0"  # type: ignore[attr-defined]
        module.__getattr__ = _named  # type: ignore[method-assign]
        return module

    @staticmethod
    def exec_module(module: Any) -> None:
        pass


class _Launches:
    """A compiled module whose kernels are never launched."""

    def __getattr__(self, name: str) -> Any:
        return _in_place


class Fused:
    """What `torch.compile` makes of a function: of what it allocates, only the results are left.

    Attributes:
        recorder: who is told of the results; None before a model is built.
    """

    recorder: Recorder | None = None

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function = function

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else partial(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; what it allocates on the way is not taken."""
        if self.recorder is None:
            return self._function(*args, **kwargs)
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if _is_tensor(one)}
        with self.recorder.elsewhere():
            out = self._function(*args, **kwargs)

        def anew(one: Any) -> Any:
            if not _is_tensor(one) or one.untyped_storage()._cdata in given:
                return one
            return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)

        return tree_map(anew, out)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _compile(function: Any = None, *, disable: bool = False, **_: Any) -> Any:
    """Stands in for `torch.compile`."""
    if function is None:
        return partial(_compile, disable=disable)
    return Fused(function) if isinstance(function, types.FunctionType) and not disable else function


def note_bodies() -> None:
    """Note what functions SGLang registers for a CUDA device; torch would only ask them for a shape."""
    register = torch.library.Library.impl

    def noting(self: Any, name: Any, function: Any, dispatch_key: str = "", **more: Any) -> Any:
        if isinstance(name, str) and dispatch_key == "CUDA":
            BODIES[f"{self.ns}::{name}"] = function
        return register(self, name, function, dispatch_key, **more)

    torch.library.Library.impl = noting  # type: ignore[method-assign]


def stand_in() -> None:
    """Put packages and Triton's launches in place; before SGLang is imported, for the rest of the process."""
    _Finder.packages = (*ALWAYS, *(one for one in IF_MISSING if find_spec(one) is None))
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
    from triton.runtime import autotuner, jit

    note_bodies()
    torch.compile = _compile
    for launcher in (jit.JITFunction, autotuner.Autotuner, autotuner.Heuristics):
        launcher.run = _in_place


def end_of_imports(recorder: Recorder) -> None:
    """From here on a kernel without a stand-in is an error, and SGLang compiles none of its own."""
    _Name.running, Fused.recorder = True, recorder
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and "load_jit" in vars(module):
            module.load_jit = lambda *_, **__: _Launches()
