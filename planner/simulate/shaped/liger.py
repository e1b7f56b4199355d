"""Liger's kernels on shapes: they keep, overwrite and allocate what those do.

Source: liger-kernel 0.8.5 `ops/rms_norm.py`, `swiglu.py`, `geglu.py`, `rope.py`, `cross_entropy.py`,
`fused_linear_cross_entropy.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.units import ceil_div

IGNORED = -100


class _Norm(torch.autograd.Function):
    """`LigerRMSNormFunction`: in place, the gradient of the input is written over that of the output.

    That of the weight is summed up in `parts` rows, one for each multiprocessor of the GPU.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, in_place: bool, parts: int) -> torch.Tensor:
        ctx.in_place, ctx.parts = in_place, parts
        rows = x.contiguous().view(-1, x.shape[-1])
        out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        ctx.save_for_backward(rows, weight, torch.empty(len(rows), dtype=torch.float32, device=x.device))
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows, weight, _ = ctx.saved_tensors
        gradient = gradient.contiguous()
        parts = None
        if ctx.needs_input_grad[1]:
            parts = torch.empty((ctx.parts, rows.shape[1]), dtype=torch.float32, device=rows.device)
        ours = gradient.view(gradient.shape) if ctx.in_place else torch.zeros_like(gradient)
        return ours, None if parts is None else parts.sum(dim=0).to(weight.dtype), None, None


class _Gated(torch.autograd.Function):
    """`LigerSiLUMulFunction` and `LigerGELUMulFunction`: the gradients are written over gate and up."""

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


class _Loss(torch.autograd.Function):
    """`LigerCrossEntropyFunction`: the gradient is written over the logits in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        losses = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
        counted = target != IGNORED
        counted.sum()
        for most in (torch.max, torch.min):  # is each target a token?
            most(target * counted)
        ctx.save_for_backward(logits.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return *ctx.saved_tensors, None


normalised, gated, turned = _Norm.apply, _Gated.apply, _Rope.apply
fused_loss, plain_loss = _FusedLoss.apply, _Loss.apply
