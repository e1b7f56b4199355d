"""Liger's mixture of experts on shapes: all experts of a block in one autograd function.

Source: liger-kernel 0.8.5 `ops/fused_moe.py` and `fused_moe_kernels.py`; triton 3.9 `testing.py: do_bench`
and `backends/nvidia/driver.py: get_empty_cache_for_benchmark`.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

from planner.simulate.recorder import GPU
from planner.units import ceil_div

TILE_ROWS = 64
TOKENS_AT_ONCE = 1024
BENCHMARK_BYTES = 256 << 20
"""What Triton takes to empty the GPU's cache while it looks for the best way to run a kernel."""
UP, DOWN, GATHER = "up", "down", "gather"
DOWN_BACKWARD, DOWN_WEIGHT, INPUT, GATHER_BACKWARD, UP_WEIGHT = "dA", "dW2", "dX", "gather dX", "dW1"


class Tuned:
    """Which kernels have been run: each is tuned at its first run."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def run(self, kernel: str) -> None:
        """Run a kernel, which changes values alone."""
        if kernel not in self._known:
            self._known.add(kernel)
            _new(BENCHMARK_BYTES // 4, torch.int32)


class _Experts(torch.autograd.Function):
    """`LigerFusedMoEFunction`: keeps what comes before the activation, and gives every weight a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, gate_up: Any, down: Any, index: Any, weights: Any, tuned: Tuned) -> Any:
        rows, width = index.numel(), down.shape[2]
        x, index = x.contiguous(), index.contiguous()
        routing = _routing(index, len(gate_up))
        before = _new((rows, 2 * width), x.dtype)
        after = _new((rows, width), x.dtype)
        tuned.run(UP)
        expanded = _new((rows, x.shape[1]), x.dtype)
        tuned.run(DOWN)
        weights = weights.flatten().contiguous()
        out = _new(x.shape, x.dtype)
        tuned.run(GATHER)
        del after, expanded
        ctx.save_for_backward(x, gate_up, down, before, weights, *routing)
        ctx.tuned, ctx.shape = tuned, index.shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, gate_up, down, before, *_ = ctx.saved_tensors
        run, dtype = ctx.tuned.run, gradient.dtype
        gradient = gradient.contiguous()
        before_gradient = _new(before.shape, dtype)
        weighted = _new((len(before), down.shape[2]), dtype)
        weights_gradient = torch.zeros(len(before), dtype=dtype, device=GPU)
        run(DOWN_BACKWARD)
        down_gradient = torch.zeros_like(down)
        run(DOWN_WEIGHT)
        expanded = _new((len(before), x.shape[1]), dtype)
        run(INPUT)
        ours = torch.zeros(x.shape, dtype=dtype, device=GPU)
        run(GATHER_BACKWARD)
        up_gradient = torch.zeros_like(gate_up)
        run(UP_WEIGHT)
        del before_gradient, weighted, expanded
        return ours, up_gradient, down_gradient, None, weights_gradient.view(ctx.shape), None


def _routing(index: torch.Tensor, experts: int) -> list[torch.Tensor]:
    """`compute_routing_metadata`, for tokens that are spread evenly."""
    tokens, per_token = index.shape
    at_once = max(1, TOKENS_AT_ONCE // (1 << (per_token - 1).bit_length()))
    counts = _new((experts, ceil_div(tokens, at_once)), torch.int32)
    counts.sum(dim=1, dtype=torch.int32)
    starts, _tiles = (_new(experts + 1, torch.int32) for _ in range(2))
    tiles = experts * ceil_div(ceil_div(index.numel(), experts), TILE_ROWS)
    of_tiles = [_new(tiles, torch.int32) for _ in range(2)]
    orders = [_new(index.numel(), torch.int32) for _ in range(3)]
    return [starts, *orders, *of_tiles]


def _new(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=GPU)


def replace_experts(module: Any, tuned: Tuned) -> None:
    """Let the experts of a block run in one function, as `LigerExperts` does."""

    def forward(self: Any, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows = hidden.view(-1, hidden.shape[-1])
        index = index.view(-1, index.shape[-1]).to(torch.int32)
        weights = weights.view(-1, weights.shape[-1])
        out = _Experts.apply(rows, self.gate_up_proj, self.down_proj, index, weights, tuned)
        return out.view(hidden.shape)

    module.forward = MethodType(forward, module)
