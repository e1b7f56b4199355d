"""What must fit beside the static share: request table, graphs, activations, logits. Bytes of one rank.

Derived from SGLang 0.5.17 source; each function names its file. Decode graphs were measured in one start
(0.102 GiB), a prefill pass of five models (benchmarks/serving_activation.py).
"""

from __future__ import annotations

from planner.serving.case import ServingCase
from planner.serving.defaults import (
    PREFILL_GRAPH_MIB,
    decode_capture_sizes,
    graph_batch,
    prefill_graphs_mib,
    prefill_tokens,
)
from planner.serving.kv import HYBRID_FAMILIES
from planner.serving.model import ServedModel
from planner.serving.weights import VOCAB_PADDING, kv_heads_of_rank, padded_vocab
from planner.units import DTYPE_BYTES, MIB, ceil_div

REQUEST_ROW_EXTRA = 4  # `extra_max_context_len` without speculative decoding
FP32 = 4
PARALLEL_MIB = 128  # 1024 x tp / 8 MiB
KV_SPLITS = 8  # `triton_attention_num_kv_splits`
SORT_BYTES = 51
"""An element of the vocabulary, for one running request: probabilities, sorted values and indices, sums, the
sort's own buffers. `sampler.py: top_k_top_p_min_p_sampling_from_probs_torch` (0.5.17); 7 GiB were seen at 805
requests over 152,064 words (H200), 10 bytes of each being the logits."""
INDEX_BYTES = {"triton": 8, "flashinfer": 4}  # one index a token; others keep one a page
HOPPER, BLACKWELL = (9, 0), (10, 0)


def request_table_bytes(case: ServingCase, slots: int) -> int:
    """`req_to_token`: int32, a padding row, context and four columns (`memory_pool.py: ReqToTokenPool`)."""
    return (slots + 1) * (case.context_length + REQUEST_ROW_EXTRA) * 4


def backend_of(case: ServingCase) -> str:
    """The attention backend, as the engine picks it where the case does not."""
    if case.attention_backend:
        return case.attention_backend
    capability = case.card.capability
    if capability == HOPPER:
        return "fa3"
    if capability is not None and capability >= BLACKWELL:
        return "trtllm_mha"
    return "triton" if case.model.model_type in HYBRID_FAMILIES else "flashinfer"


def graph_bytes(case: ServingCase) -> int:
    """Decode graphs (attention buffers, logits, 8 MiB a graph) and the reserve of prefill graphs.

    8 MiB is the non-torch share that the engine itself counts for a captured graph (`reserve_for_graph_mb`),
    128 MiB a rank what it adds for tensor parallelism; buffers: `init_cuda_graph_state` of each backend.
    """
    batch = graph_batch(case)
    captured = PREFILL_GRAPH_MIB * MIB * len(decode_capture_sizes(batch))
    logits = batch * _vocab(case) * (DTYPE_BYTES[case.dtype] + FP32)
    links = PARALLEL_MIB * case.tp_size * MIB if case.tp_size > 1 else 0
    return captured + logits + links + _attention_buffers(case, batch) + prefill_graphs_mib(case) * MIB


def _attention_buffers(case: ServingCase, batch: int) -> int:
    backend = backend_of(case)
    if backend not in INDEX_BYTES:
        return batch * ceil_div(case.context_length, case.page_size) * 4
    table = batch * case.context_length * INDEX_BYTES[backend]
    if backend != "triton":
        return table
    width = case.model.head_dim if case.model.mla is None else case.model.mla.kv_lora
    return table + batch * (case.model.heads // case.tp_size) * KV_SPLITS * (width + 1) * FP32


def activation_bytes(case: ServingCase) -> int:
    """What a prefill pass needs at its widest moment; within 0.6 % of five models (H200, 0.5.17).

    Beside a layer's own tensors live the residual, the layer's input and what is computed last. In a dense
    feed-forward part the last layer's output, which the loop over the layers still holds, makes a fourth one;
    attention and experts write over it.
    """
    hidden, tp = case.model.hidden, case.tp_size
    width = 3 * hidden + max(_attention_width(case), _feed_forward_width(case.model, tp))
    return prefill_tokens(case) * width * DTYPE_BYTES[case.dtype]


def _attention_width(case: ServingCase) -> int:
    model, heads = case.model, case.model.heads // case.tp_size
    if model.mla is not None:
        mla = model.mla
        return heads * (2 * (mla.nope + mla.rope) + mla.nope + 2 * mla.v) + mla.kv_lora + mla.rope
    return (2 * heads + 2 * kv_heads_of_rank(model, case.tp_size)) * model.head_dim


def _feed_forward_width(model: ServedModel, tp: int) -> int:
    """Dense: gate, up, product, and the output before them.

    Experts: `fused_moe.py` keeps caches 1 and 3 in one buffer beside 2.
    """
    dense = model.hidden + (3 if model.gated else 2) * model.ffn // tp
    if model.moe is None:
        return dense
    ffn = model.moe.ffn // tp
    routed = model.moe.per_token * (max(2 * ffn, model.hidden) + ffn)
    return max(routed, dense if model.moe.dense_layers else 0)


def logits_bytes(case: ServingCase, rows: int) -> int:
    """Logits in the model's type, their fp32 copy and probabilities (`logits_processor.py`, `sampler.py`)."""
    return rows * _vocab(case) * (DTYPE_BYTES[case.dtype] + 2 * FP32)


def sort_bytes(case: ServingCase, rows: int) -> int:
    """What picking with top_p or top_k takes where the sampler sorts; FlashInfer's does not."""
    return rows * _vocab(case) * SORT_BYTES if case.sorts_vocabulary else 0


def _vocab(case: ServingCase) -> int:
    return padded_vocab(case.model.vocab, case.tp_size, VOCAB_PADDING)
