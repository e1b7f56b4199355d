"""The package flash-attn on shapes: what its kernels keep and allocate is what torch's copy of them does.

Source: flash-attn 2.8 `flash_attn_interface.py: FlashAttnFunc`, `csrc/flash_attn/flash_api.cpp`; torch's copy
is `transformers/cuda/flash_attn`. transformers' own code around it is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from planner.training_case import TrainingCase

NAME, VERSION = "flash_attention_2", 2
STATE = (
    "_loaded_implementation",
    "_flash_fn",
    "_flash_varlen_fn",
    "_flash_with_kvcache_fn",
    "_pad_fn",
    "_unpad_fn",
    "_process_flash_kwargs_fn",
    "_process_with_kvcache_kwargs_fn",
)
"""What transformers remembers of the package that it found."""


def _attend(  # noqa: PLR0913, PLR0917 - its signature
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    heads_first = [one.transpose(1, 2) for one in (q, k, v)]
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    return attend(*heads_first, dropout_p, causal, False, scale=softmax_scale)[0].transpose(1, 2)


@contextmanager
def flash_attention(case: TrainingCase) -> Iterator[None]:
    """Let transformers find the package, where a case asks for it."""
    if case.attention != NAME:
        yield
        return
    code = import_module("transformers.modeling_flash_attention_utils")
    model = import_module("transformers.modeling_utils").PreTrainedModel
    found = {"general_availability_check": lambda *_, **__: True}
    with (
        mock.patch.dict(code.FLASH_ATTENTION_COMPATIBILITY_MATRIX[VERSION], found),
        mock.patch.object(model, "_flash_attn_import_error", lambda *_, **__: None),
        mock.patch.object(code, "_lazy_imports", _lazy_imports),
        mock.patch.multiple(code, **dict.fromkeys(STATE)),
        # it looks at positions; several documents in a row take what one of that length does
        mock.patch.object(code, "_is_packed_sequence", lambda *_: False),
    ):
        yield


def _lazy_imports(*_: Any, **__: Any) -> tuple[Any, ...]:
    """Functions for even batches and for others, none for answers, none to pad and unpad."""
    return _attend, _attend, None, None, None
