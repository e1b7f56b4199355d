"""What transformers' `generate` holds at its two highest moments: the prompt's pass and the last new token.

Source: transformers 5.23 `cache_utils.py` (`DynamicLayer.update` concatenates; `DynamicSlidingWindowLayer`
keeps a view, so that a prompt stays whole until the first new token), `generation/utils.py` (`logits_to_keep`
1 and an fp32 copy of the logits), `integrations/sdpa_attention.py` and the decoder layers of `models/`.
tests/unit/test_serving_engine.py compares it with real calls.
"""

from __future__ import annotations

from planner.serving.case import GenerationCase
from planner.serving.model import ServedModel
from planner.serving.weights import blocks, weight_bytes
from planner.tables import workspace_bytes
from planner.units import DTYPE_BYTES

FP32 = 4
LIVE_HIDDEN = 4  # embeddings, the layer's input, the residual sum and the normalised input live together
LEARNED_POSITIONS = 2  # gpt2 also holds the positions looked up and the output of attention
EXPERT_COPIES = 4  # stacked experts keep gate and up as one tensor beside activation and product
ROTARY_SETS = {"gemma3_text": 2}  # tables of cosines and sines: one for window layers, one for full ones
CACHE_OBJECT_SINCE = (4, 36)  # before, a new tuple of caches was made while the caller held the old one
LAST_LOGITS_SINCE = (4, 45)  # before, logits of the whole prompt were made, and their fp32 copy
DEQUANTISED = ("bnb", "gptq", "awq")


def prefill_parts(case: GenerationCase) -> dict[str, int]:
    """The last layer of the prompt's pass: every layer's keys and values are there, whole."""
    tokens = case.batch_size * case.input_tokens
    parts = _resident(case)
    parts["kv_cache"] = tokens * case.model.layers * kv_elements(case.model) * DTYPE_BYTES[case.dtype]
    parts["activations"] = tokens * _width_bytes(case)
    if case.engine_version < LAST_LOGITS_SINCE:
        logits = tokens * case.model.vocab * (DTYPE_BYTES[case.dtype] + FP32)
        parts["activations"] = max(parts["activations"], logits)
    parts["mask"] = tokens * case.input_tokens * _mask_bytes(case)
    return parts


def _mask_bytes(case: GenerationCase) -> int:
    """Bytes a pair of tokens takes in masks: none where the kernel knows the shape, one mask a kind of layer.

    Source: transformers 5.23 `masking_utils.py`: sdpa, unlike eager, drops a causal mask that pads nothing
    and sees all.
    """
    model, eager = case.model, case.attention == "eager"
    windowed = model.window is not None and model.window_layers > 0
    windowed = windowed and (eager or case.input_tokens > (model.window or 0))
    whole = model.window_layers < model.layers
    if case.attention == "flash_attention_2":
        return 0
    masks = windowed + whole if case.masked or eager else windowed
    return masks * (DTYPE_BYTES[case.dtype] if eager else 1)


def decode_parts(case: GenerationCase) -> dict[str, int]:
    """The last new token: the grown cache with the copy being made, or the logits after it."""
    kept = case.input_tokens + case.output_tokens - 1
    parts = _resident(case)
    parts["kv_cache"] = case.batch_size * _kept_tokens(case.model, kept) * _kv_token_bytes(case)
    growth, logits = growth_bytes(case), logits_bytes(case)
    parts["cache growth" if growth > logits else "logits"] = max(growth, logits)
    return parts


def _resident(case: GenerationCase) -> dict[str, int]:
    itemsize = DTYPE_BYTES[case.dtype]
    parts = {"weights": weight_bytes(case.model, case.plan, itemsize)}
    if not case.card.on_cpu:
        parts["cublas workspace"] = workspace_bytes(case.card.name or "a100-80gb")
    if case.plan.kind in DEQUANTISED:  # one matrix at a time is unpacked to the compute type
        largest = max(m.out * m.into for m in blocks(case.model, 1))
        parts["unpacked matrix"] = (largest if case.model.moe is not None else largest // 2) * itemsize
    return parts


def kv_elements(model: ServedModel) -> int:
    """Keys and values of one token in one layer; a latent model caches its full heads."""
    if model.mla is not None:
        return model.heads * (model.mla.nope + model.mla.rope + model.mla.v)
    return 2 * model.kv_heads * model.head_dim


def _kv_token_bytes(case: GenerationCase) -> int:
    return kv_elements(case.model) * DTYPE_BYTES[case.dtype]


def _kept_tokens(model: ServedModel, tokens: int) -> int:
    """Token slots over all layers; a window layer keeps its window less one."""
    windowed = min(tokens, (model.window or tokens + 1) - 1)
    return (model.layers - model.window_layers) * tokens + model.window_layers * windowed


def growth_bytes(case: GenerationCase) -> int:
    """A layer's keys (then its values) are copied to a longer tensor while the old one is still there.

    Before 4.36 every layer's old tensors stay until the forward pass has returned.
    """
    model, tokens = case.model, case.input_tokens + case.output_tokens - 1
    if case.engine_version < CACHE_OBJECT_SINCE:
        return case.batch_size * _kept_tokens(model, tokens - 1) * _kv_token_bytes(case)
    if model.window_layers == model.layers and model.window:
        tokens = min(tokens, model.window)
    wide = kv_elements(model) // 2 if model.mla is None else model.heads * (model.mla.nope + model.mla.rope)
    return case.batch_size * tokens * wide * DTYPE_BYTES[case.dtype]


def logits_bytes(case: GenerationCase) -> int:
    """The last token's logits, their fp32 copy, the processed scores and the probabilities."""
    return case.batch_size * case.model.vocab * (DTYPE_BYTES[case.dtype] + 3 * FP32)


def _width_bytes(case: GenerationCase) -> int:
    """Bytes a prompt token needs at the widest moment of a layer: feed-forward, attention or a norm."""
    model, itemsize = case.model, DTYPE_BYTES[case.dtype]
    live = LIVE_HIDDEN + (LEARNED_POSITIONS if model.learned_positions else 0)
    feed = (live * model.hidden + _feed_forward_width(model)) * itemsize
    norm = (LIVE_HIDDEN * itemsize + 2 * FP32) * model.hidden
    rotary = 2 * model.rotary_width * ROTARY_SETS.get(model.model_type, 1) * itemsize
    return max(feed, norm, _attention_bytes(case)) + rotary


def _feed_forward_width(model: ServedModel) -> int:
    copies = model.feed_copies
    if model.moe is None:
        return copies * model.ffn
    routed = model.moe.per_token * (EXPERT_COPIES * model.moe.ffn + model.hidden)
    return max(routed, copies * model.ffn if model.moe.dense_layers else 0)


def _attention_bytes(case: GenerationCase) -> int:
    """Rotation holds four copies of the queries; eager attention the scores, and the softmax in fp32.

    Softmax into fp32 copies its input first; only fp16 on a GPU is spared that (torch 2.11 `SoftMax.cpp`).
    The CPU's fused attention takes no values narrower than keys. gpt-oss stays in its type, with the sinks
    beside the scores.
    """
    model, itemsize = case.model, DTYPE_BYTES[case.dtype]
    queries = model.heads * (model.head_dim if model.mla is None else model.mla.nope + model.mla.rope)
    width = (3 * model.hidden + 4 * queries + kv_elements(model)) * itemsize
    if case.attention != "eager" and not (case.card.on_cpu and model.mla is not None):
        return width
    copies = 1 if case.dtype == "fp16" and not case.card.on_cpu else 2
    pair = 3 * itemsize if model.model_type == "gpt_oss" else itemsize + copies * FP32
    scores = model.heads * case.input_tokens * pair
    return max(width, (3 * model.hidden + 3 * queries) * itemsize + scores)


def peak_bytes(case: GenerationCase) -> int:
    """The higher of the two phases."""
    return max(sum(prefill_parts(case).values()), sum(decode_parts(case).values()))
