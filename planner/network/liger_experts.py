"""Liger's mixture of experts: all experts of a block in one autograd function.

Each of its kernels looks for the best way to run when it runs first (`planner/tape/kernels.py`).
Source: liger-kernel 0.8.5 `ops/fused_moe.py: LigerFusedMoEFunction`, `compute_routing_metadata`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.memory.arena import Buffer
from planner.network.forward import Forward
from planner.network.modules import Module
from planner.tape import ops
from planner.tape.autograd import Gradients, Source, Tensor
from planner.units import ceil_div

INT32 = 4
TILE_ROWS = 64
TOKENS_AT_ONCE = 1024
REAL_TOKENS = 1 << 60
UP, DOWN, GATHER = "up", "down", "gather"
DOWN_BACKWARD, DOWN_WEIGHT, INPUT, GATHER_BACKWARD, UP_WEIGHT = "dA", "dW2", "dX", "gather dX", "dW1"


@dataclass(frozen=True)
class Chosen:
    """The experts of each token: how many, which, and how much each of them counts."""

    per_token: int
    index: Buffer
    weights: Tensor


def fused_experts(forward: Forward, up: Module, down: Module, x: Tensor, chosen: Chosen) -> Tensor:
    """Products of stacked weights that one module holds; every weight gets a gradient, be it frozen."""

    def inner(y: Tensor) -> Tensor:
        return forward.call(down, y, lambda z: _experts(forward, up, down, z, chosen))

    return forward.call(up, x, inner)


def _experts(forward: Forward, up: Module, down: Module, x: Tensor, chosen: Chosen) -> Tensor:
    tape, weights = forward.tape, chosen.weights
    new, tune = tape.arena.new, tape.workspaces.tune
    count, hidden, width = down.weight.shape
    rows, size = forward.tokens * chosen.per_token, x.itemsize
    narrow_index = new(rows * INT32, "activations")
    routing = _routing(forward, rows, count, chosen.per_token)
    before = new(rows * 2 * width * size, "activations")
    after = new(rows * width * size, "activations")
    tune(UP)
    expanded = new(rows * hidden * size, "activations")
    tune(DOWN)
    out = tape.tensor(x.numel, size)
    tune(GATHER)
    del narrow_index, after, expanded
    parts = [module.weight for module in (up, down)]
    trained = [weight for weight in parts if weight.trainable]
    if not (tape.recording and (x.needs_grad or weights.needs_grad or trained)):
        return out
    in_bytes, weights_bytes = x.nbytes, weights.nbytes
    up_bytes, down_bytes = (weight.numel * size for weight in parts)

    def rule(_gradient: Buffer) -> Gradients:
        what = ops.ACTIVATION_GRADIENTS
        made = [new(rows * 2 * width * size, what), new(rows * width * size, what)]
        of_weights = new(weights_bytes, what)
        tune(DOWN_BACKWARD)
        of_down = new(down_bytes, ops.GRADIENTS)
        tune(DOWN_WEIGHT)
        made.append(new(rows * hidden * size, what))
        tune(INPUT)
        ours = new(in_bytes, what)
        tune(GATHER_BACKWARD)
        of_up = new(up_bytes, ops.GRADIENTS)
        tune(UP_WEIGHT)
        made.clear()
        return [ours, of_up, of_down, of_weights]

    sources: list[Source] = [x, *(weight if weight.trainable else None for weight in parts), weights]
    return tape.attach(out, rule, sources, saves=(x.buffer, before, weights.buffer, *routing))


def _routing(forward: Forward, rows: int, experts: int, per_token: int) -> list[Buffer]:
    """Where the rows of each expert begin, their orders, and tiles of rows, for tokens spread evenly."""
    new = forward.tape.arena.new
    counts_bytes, tiles_bytes = _routing_bytes(forward.tokens, rows, experts, per_token)
    counts = [new(nbytes, "activations") for nbytes in (counts_bytes, experts * INT32)]
    starts, starts_of_tiles = (new((experts + 1) * INT32, "activations") for _ in range(2))
    of_tiles = [new(tiles_bytes, "activations") for _ in range(2)]
    orders = [new(rows * INT32, "activations") for _ in range(3)]
    del counts, starts_of_tiles
    return [starts, *orders, *of_tiles]


def _routing_bytes(tokens: int, rows: int, experts: int, per_token: int) -> tuple[int, int]:
    """Bytes of counts and of tiles; of lengths that stand for a polynomial (`planner/grid`), upper ends."""
    at_once = max(1, TOKENS_AT_ONCE // (1 << (per_token - 1).bit_length()))
    if tokens > REAL_TOKENS:
        most_bytes = ceil_div(experts * INT32, at_once)  # of a token's counts; a row's tile takes none whole
        return tokens * most_bytes, experts * INT32 + rows
    tiles = experts * ceil_div(ceil_div(rows, experts), TILE_ROWS)
    return experts * ceil_div(tokens, at_once) * INT32, tiles * INT32
