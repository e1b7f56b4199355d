"""Weights of one rank: which matrices it holds, how many rows and columns of each, in which format.

Source: SGLang 0.5.17 `srt/layers/linear.py` (column, row and QKV parallel), `vocab_parallel_embedding.py`
(padding), `moe/fused_moe_triton/layer.py` (experts split by width), `models/deepseek_v2.py` (latent
projections replicated) and `models/deepseek_common/deepseek_weight_loader.py` (`w_kc` and `w_vc` copy
`kv_b_proj`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from planner.serving.formats import UNQUANTISED, WeightFormat
from planner.serving.model import Mla, ServedModel
from planner.units import round_up

VOCAB_PADDING = 64


@dataclass(frozen=True)
class Matrix:
    """Rows and columns that one rank holds, `count` times in the model. `bias`: elements beside it."""

    out: int
    into: int
    count: int
    bias: int = 0
    quantised: bool = True
    expert: bool = False
    outer: bool = False

    def stored_bytes(self, plan: WeightFormat, itemsize: int) -> int:
        """Bytes under a format."""
        use = plan if self.quantised and (self.expert or not plan.experts_only) else UNQUANTISED
        return self.count * (use.matrix_bytes(self.out, self.into, itemsize) + self.bias * itemsize)


@lru_cache(maxsize=256)
def weight_bytes(
    model: ServedModel, plan: WeightFormat, itemsize: int, *, tp: int = 1, padded: bool = False
) -> int:
    """Weights of one rank. `padded`: as SGLang does, with vocabulary padded and latent projections twice."""
    parts = [*blocks(model, tp, absorbed=padded), *outer(model, tp, padding=VOCAB_PADDING if padded else 1)]
    norms = model.layers * model.norm_elements + model.outer_elements
    return sum(m.stored_bytes(plan, itemsize) for m in parts) + norms * itemsize


def blocks(model: ServedModel, tp: int, *, absorbed: bool = False) -> Iterator[Matrix]:
    """The linear layers of all blocks."""
    if model.mla is None:
        yield from _attention(model, tp)
    else:
        yield from _latent_attention(model, model.mla, tp, absorbed=absorbed)
    yield from _feed_forward(model, tp)


def outer(model: ServedModel, tp: int, *, padding: int) -> Iterator[Matrix]:
    """Embedding, head and learned positions: never quantised."""
    rows = padded_vocab(model.vocab, tp, padding) // tp
    yield Matrix(rows, model.hidden, 1 if model.tied else 2, quantised=False, outer=True)
    if model.learned_positions:
        yield Matrix(model.learned_positions, model.hidden, 1, quantised=False, outer=True)


def padded_vocab(vocab: int, tp: int, padding: int) -> int:
    """Rows of the vocabulary once padded so that ranks share them evenly.

    >>> padded_vocab(151_669, 4, 64)
    151680
    """
    rows = round_up(vocab, padding)
    return rows if rows % tp == 0 else round_up(vocab, padding * tp)


def kv_heads_of_rank(model: ServedModel, tp: int) -> int:
    """Key and value heads are replicated once there are more ranks than heads."""
    return max(1, model.kv_heads // tp)


def _attention(model: ServedModel, tp: int) -> Iterator[Matrix]:
    queries = model.heads // tp * model.head_dim
    rows = queries + 2 * kv_heads_of_rank(model, tp) * model.head_dim
    yield Matrix(rows, model.hidden, model.layers, bias=rows if model.qkv_bias else 0)
    yield Matrix(model.hidden, queries, model.layers, bias=model.hidden if model.out_bias else 0)


def _latent_attention(model: ServedModel, mla: Mla, tp: int, *, absorbed: bool) -> Iterator[Matrix]:
    n, heads = model.layers, model.heads // tp
    queries = heads * (mla.nope + mla.rope)
    if mla.q_lora:
        yield Matrix(mla.q_lora, model.hidden, n)
    yield Matrix(queries, mla.q_lora or model.hidden, n)
    yield Matrix(mla.kv_lora + mla.rope, model.hidden, n)
    yield Matrix(heads * (mla.nope + mla.v), mla.kv_lora, n)
    yield Matrix(model.hidden, heads * mla.v, n)
    if absorbed:
        yield Matrix(heads * (mla.nope + mla.v), mla.kv_lora, n, quantised=False)


def _feed_forward(model: ServedModel, tp: int) -> Iterator[Matrix]:
    moe = model.moe
    dense = model.layers if moe is None else moe.dense_layers
    if dense:
        yield from _mlp(model, model.ffn // tp, dense)
    if moe is None:
        return
    sparse = model.layers - dense
    router = moe.experts if model.router_bias else 0
    yield Matrix(moe.experts, model.hidden, sparse, bias=router, quantised=False)
    yield from _mlp(model, moe.ffn // tp, sparse * moe.experts, expert=True)
    if moe.shared_ffn:
        yield from _mlp(model, moe.shared_ffn // tp, sparse)


def _mlp(model: ServedModel, width: int, count: int, *, expert: bool = False) -> Iterator[Matrix]:
    rows = 2 * width if model.gated else width
    yield Matrix(rows, model.hidden, count, bias=rows if model.mlp_bias else 0, expert=expert)
    yield Matrix(model.hidden, width, count, bias=model.hidden if model.mlp_bias else 0, expert=expert)
