"""The KV pool of SGLang: bytes a token costs, and how a budget becomes tokens.

Source: SGLang 0.5.17 and 0.5.23 `srt/model_executor/pool_configurator.py` (`DefaultPoolConfigurator`,
`HybridSWAPoolConfigurator`), `srt/configs/model_config.py` (`get_num_kv_heads`, `is_hybrid_swa_model`).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.serving.model import ServedModel
from planner.serving.weights import kv_heads_of_rank

SWA_FULL_TOKENS_RATIO = 0.8  # `swa_full_tokens_ratio`
HYBRID_FAMILIES = ("gpt_oss",)
"""Families of ours with a second pool for window layers. Gemma 2 and 3, Mistral and Phi 3 are not among the
engine's: they keep every token in every layer."""


@dataclass(frozen=True)
class Cell:
    """What one token costs on one rank: in layers that keep all tokens, and in layers with their own pool."""

    full_bytes: int
    window_bytes: int = 0
    window: int = 0

    @property
    def total_bytes(self) -> int:
        """A token within the window of every layer."""
        return self.full_bytes + self.window_bytes


@dataclass(frozen=True)
class Pool:
    """Slots for tokens; `window_tokens` are those of the pool of window layers (0: there is none)."""

    tokens: int
    window_tokens: int
    pool_bytes: int


def token_cell(model: ServedModel, kv_itemsize: int, tp: int) -> Cell:
    """Bytes of a token: grouped heads are divided over ranks, a latent is kept whole on each."""
    if model.mla is not None:
        return Cell((model.mla.kv_lora + model.mla.rope) * model.layers * kv_itemsize)
    layer = 2 * kv_heads_of_rank(model, tp) * model.head_dim * kv_itemsize
    if model.model_type not in HYBRID_FAMILIES or not model.window:
        return Cell(layer * model.layers)
    full_layers = model.layers - model.window_layers
    return Cell(layer * full_layers, layer * model.window_layers, model.window)


def pool_of(budget_bytes: int, cell: Cell, *, ratio: float, page: int, most: int | None = None) -> Pool:
    """Divide a budget into slots, whole pages each; `most`: `max_total_tokens`.

    >>> pool_of(1 << 30, Cell(57_344), ratio=0.8, page=1).tokens
    18724
    """
    per_token = cell.full_bytes + ratio * cell.window_bytes
    tokens = max(0, int(budget_bytes // per_token))
    if most is not None:
        tokens = min(tokens, most)
    tokens = tokens // page * page
    windowed = int(tokens * ratio) // page * page if cell.window_bytes else 0
    return Pool(tokens, windowed, tokens * cell.full_bytes + windowed * cell.window_bytes)


def budget_for(tokens: int, cell: Cell, *, ratio: float, page: int) -> int:
    """The smallest budget that gives at least so many slots."""
    whole = -(-tokens // page) * page
    return int(-(-whole * (cell.full_bytes + ratio * cell.window_bytes) // 1))


def holds_a_request(pool: Pool, cell: Cell, page: int) -> bool:
    """Whether the pool of window layers passes the engine's own check at start."""
    return not cell.window_bytes or pool.window_tokens > cell.window + page
