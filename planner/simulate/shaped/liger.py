"""Liger's kernels on shapes: they keep, overwrite and allocate what those do.

Source: liger-kernel 0.8.5 `ops/rms_norm.py`, `swiglu.py`, `rope.py`, `fused_linear_cross_entropy.py`, and
`transformers/monkey_patch.py` for where they are put.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from planner.training_case import TrainingCase
from planner.units import ceil_div

MULTIPROCESSORS = 132
"""Of an H100 or H200: a norm's gradient is summed up in so many rows."""

IGNORED = -100


class _Norm(torch.autograd.Function):
    """`LigerRMSNormFunction`: the gradient of the input is written over that of the output."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = x.contiguous().view(-1, x.shape[-1])
        out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        ctx.save_for_backward(rows, weight, torch.empty(len(rows), dtype=torch.float32, device=x.device))
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows, weight, _ = ctx.saved_tensors
        gradient = gradient.contiguous()
        if not ctx.needs_input_grad[1]:
            return gradient.view(gradient.shape), None
        parts = torch.empty((MULTIPROCESSORS, rows.shape[1]), dtype=torch.float32, device=rows.device)
        return gradient.view(gradient.shape), parts.sum(dim=0).to(weight.dtype)


class _SwiGlu(torch.autograd.Function):
    """`LigerSiLUMulFunction`: the gradients are written over gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate_rows, up_rows = (x.contiguous().view(-1, x.shape[-1]) for x in (gate, up))
        ctx.save_for_backward(gate_rows, up_rows)
        return torch.empty_like(gate_rows).view(gate.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gate, up = ctx.saved_tensors
        shape = gradient.contiguous().shape
        return gate.view(shape), up.view(shape)


class _Rope(torch.autograd.Function):
    """`LigerRopeFunction`: queries and keys turn where they are, and so do their gradients."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        ctx.save_for_backward(cos.contiguous(), sin.contiguous())
        return _turned(q), _turned(k)

    @staticmethod
    def backward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
        return _turned(q), _turned(k), None, None


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


class _FusedLoss(torch.autograd.Function):
    """`LigerFusedLinearCrossEntropyFunction`: logits a chunk at a time, and gradients in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        grad_hidden = torch.zeros_like(hidden)
        trains = hidden.requires_grad and weight.requires_grad
        grad_weight = torch.zeros_like(weight) if trains else None
        losses = torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device)
        counted = target != IGNORED
        counted.sum()
        _over_chunks(hidden, weight, grad_hidden, grad_weight)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return *ctx.saved_tensors, None


def _over_chunks(
    hidden: torch.Tensor, weight: torch.Tensor, grad_hidden: torch.Tensor, grad_weight: torch.Tensor | None
) -> None:
    """Every chunk's logits lie in the same place; products go where their results are wanted."""
    tokens, vocab, width = len(hidden), *weight.shape
    rows = min(_next_power_of_2(ceil_div(tokens, ceil_div(vocab, width))), tokens)
    logits = torch.empty((rows, vocab), dtype=hidden.dtype, device=hidden.device)
    torch.mm(hidden[:rows], weight.t(), out=logits)
    if hidden.requires_grad:
        torch.mm(logits, weight, out=grad_hidden[:rows])
    if grad_weight is not None:
        torch.addmm(grad_weight, logits.t(), hidden[:rows], out=grad_weight)


def _next_power_of_2(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def _norm_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    return _Norm.apply(x, self.weight)


def _mlp_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(_SwiGlu.apply(self.gate_proj(x), self.up_proj(x)))


def _model_forward(self: Any, input_ids: Any = None, labels: Any = None, **others: Any) -> Any:
    """A causal language model that is trained: its logits are never there."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    outputs = self.model(input_ids=input_ids, **others)
    hidden = outputs[0][:, slice(0, None), :]
    shifted = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    loss = _FusedLoss.apply(hidden.view(-1, hidden.shape[-1]), self.lm_head.weight, shifted.view(-1))
    return CausalLMOutputWithPast(loss=loss, past_key_values=outputs.past_key_values)


def apply_kernels(case: TrainingCase, model: Any) -> None:
    """Put the kernels that a case asks for into a model; the rotary one is put there by `rotating`."""
    for module in model.modules():
        if case.fuses("rms_norm") and type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_norm_forward, module)
        if case.fuses("swiglu") and type(module).__name__.endswith("MLP"):
            module.forward = MethodType(_mlp_forward, module)
    if case.fuses("fused_linear_cross_entropy"):
        model.forward = MethodType(_model_forward, model)


@contextmanager
def rotating(case: TrainingCase) -> Iterator[None]:
    """Let a family's own attention call Liger's rotary function, where a case asks for it."""
    if not case.fuses("rope"):
        yield
        return
    family = case.architecture.model_type
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")

    def rotary(q: Any, k: Any, cos: Any, sin: Any, **_: Any) -> Any:
        return _Rope.apply(q, k, cos, sin)

    with mock.patch.object(module, "apply_rotary_pos_emb", rotary):
        yield
