"""Make torch on the meta device take the operators that it takes on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

aten = torch.ops.aten
MOST_FLASH_WIDTH = 256


@contextmanager
def cuda_paths(*, hopper: bool) -> Iterator[None]:
    """Replace what torch decides by device: attention kernels, dropout and softmax into fp32.

    Args:
        hopper: compute capability 9.0, where cuDNN's attention takes what FlashAttention does not.
    """
    softmax, plain_dropout = F.softmax, F.dropout

    def dropout(
        x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p == 0 or inplace:
            return plain_dropout(x, p, training, inplace)
        return torch.native_dropout(x, p, True)[0]

    def narrow_softmax(
        x: torch.Tensor, dim: int = -1, *rest: Any, dtype: Any = None, **kw: Any
    ) -> torch.Tensor:
        if dtype is torch.float32 and x.dtype is torch.float16:
            return aten._softmax(x, dim, True)  # `half_to_float`, which bf16 has not (`SoftMax.cpp`)
        return softmax(x, dim, *rest, dtype=dtype, **kw)

    with (
        mock.patch.object(F, "scaled_dot_product_attention", partial(_attention, hopper)),
        mock.patch.object(F, "dropout", dropout),
        mock.patch.object(F, "softmax", narrow_softmax),
    ):
        yield


def _attention(  # noqa: PLR0913, PLR0917 - torch's signature
    hopper: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Flash without a mask, cuDNN's for uneven widths, else the memory-efficient one (`sdp_utils.cpp`)."""
    same_heads, narrow = query.shape[1] == key.shape[1], query.dtype != torch.float32
    flash = attn_mask is None and narrow and query.shape[-1] == value.shape[-1] <= MOST_FLASH_WIDTH
    if flash and (same_heads or enable_gqa):
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if not same_heads:
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # sdp_utils: convert_boolean_attn_mask
        zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = zeros.masked_fill_(attn_mask.logical_not(), float("-inf"))
    bias = None if attn_mask is None else attn_mask.expand(query.shape[0], query.shape[1], -1, -1)
    if hopper and narrow and query.shape[-1] != value.shape[-1]:
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, True, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )[0]
