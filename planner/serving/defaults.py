"""What SGLang picks for itself: prefill chunk, graph batches, the static fraction, request slots.

Source: SGLang 0.5.17 `srt/server_args.py: _handle_gpu_memory_settings`, 0.5.23
`srt/arg_groups/memory_hook.py: handle_gpu_memory_settings`, `reserve_for_graph_mb`;
`srt/mem_cache/kv_cache_configurator.py: resolve_max_num_reqs`. Releases between the two use the later table.
"""

from __future__ import annotations

from planner.serving.case import ServingCase

# Card size in MiB below which a row holds -> (chunked prefill tokens, decode graph batch for tp < 4 and >= 4)
TIERS_0_5_17 = (
    (20_480, 2048, 8, 8),
    (35_840, 2048, 24, 80),
    (61_440, 4096, 32, 160),
    (163_840, 8192, 256, 512),
    (1 << 40, 16_384, 512, 512),
)
TIERS_0_5_23 = (TIERS_0_5_17[0], (35_840, 4096, 48, 160), *TIERS_0_5_17[2:])
LARGE_CARD_MIB = 61_440
LARGE_CARD_RESERVE_MIB = 10_240
MLA_PREFILL_GRAPH_MIB = 1536
PREFILL_GRAPH_MIB = 8  # non-torch memory of one captured prefill graph
UNCHUNKED_TOKENS = 16_384  # max_prefill_tokens counts where chunking is off
MLA_CAPTURE_TOKENS = {True: 2048, False: 8192}  # early releases, later ones
DEFAULT_RUNNING = (2048, 4096)


def is_early(case: ServingCase) -> bool:
    """Whether the table of 0.5.17 holds."""
    parts = [int(part) for part in case.engine_version.split(".")[:3] if part.isdigit()]
    return parts < [0, 5, 18]


def prefill_tokens(case: ServingCase) -> int:
    """Most tokens of one prefill pass."""
    if case.chunked_prefill_size == -1:
        return UNCHUNKED_TOKENS
    return case.chunked_prefill_size or _tier(case)[1]


def graph_batch(case: ServingCase) -> int:
    """Largest batch whose decode step is captured."""
    if case.cuda_graph_max_bs is not None:
        return case.cuda_graph_max_bs
    batch = _tier(case)[3 if case.tp_size >= 4 else 2]
    if not is_early(case) and case.max_running_requests is not None:
        return min(batch, case.max_running_requests)
    return batch


def _tier(case: ServingCase) -> tuple[int, int, int, int]:
    tiers = TIERS_0_5_17 if is_early(case) else TIERS_0_5_23
    return next(tier for tier in tiers if case.card.total_mib < tier[0])


def reserve_mib(case: ServingCase) -> float:
    """What the engine sets aside for activations and graphs when it picks its own fraction."""
    reserved = 512 + 1.5 * max(prefill_tokens(case), 2048) + 1024 * case.tp_size / 8
    reserved += 2 * graph_batch(case) + prefill_graphs_mib(case)
    return max(reserved, LARGE_CARD_RESERVE_MIB) if case.card.total_mib > LARGE_CARD_MIB else reserved


def prefill_graphs_mib(case: ServingCase) -> int:
    """Reserve for captured prefill graphs."""
    if not case.prefill_cuda_graph:
        return 0
    if case.model.mla is not None:
        return MLA_PREFILL_GRAPH_MIB
    return PREFILL_GRAPH_MIB * len(prefill_capture_sizes(_captured_tokens(case)))


def _captured_tokens(case: ServingCase) -> int:
    most = case.chunked_prefill_size or _tier(case)[1]
    if case.model.mla is not None:
        most = min(most, MLA_CAPTURE_TOKENS[is_early(case)])
    return most if case.max_total_tokens is None else min(most, case.max_total_tokens)


def default_fraction(case: ServingCase) -> float:
    """`mem_fraction_static` when the user gives none.

    >>> from planner.serving.case import parse_serving_case
    >>> qwen = {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    ...         "vocab_size": 152064, "num_hidden_layers": 28, "num_attention_heads": 28,
    ...         "num_key_value_heads": 4}
    >>> case = parse_serving_case({"kind": "serve", "engine_version": "0.5.17", "hf_config": qwen,
    ...                            "gpu": {"total_mib": 143771}})
    >>> default_fraction(case)
    0.903
    """
    total = case.card.total_mib
    return max(0.001, round((total - reserve_mib(case)) / total, 3))


def prefill_capture_sizes(chunk: int) -> list[int]:
    """Token counts at which the engine captures prefill graphs.

    >>> [len(prefill_capture_sizes(c)) for c in (2048, 4096, 8192, 16384)]
    [42, 50, 58, 74]
    """
    ranges = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for start, stop, step in ranges for size in range(start, stop, step)]
    sizes += range(4608, chunk + 1, 512)
    return [size for size in sizes if size <= chunk]


def decode_capture_sizes(batch: int) -> list[int]:
    """Batches whose decode step is captured (`_generate_decode_cuda_graph_batch_sizes`).

    >>> decode_capture_sizes(32)
    [1, 2, 4, 8, 12, 16, 24, 32]
    """
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, batch + 1, 32)]
    sizes = [size for size in sizes if size <= batch]
    return sizes if batch in sizes else [*sizes, batch]


def request_slots(case: ServingCase, tokens: int) -> int:
    """Requests one replica runs at a time: asked for or the default, at most half the pool's tokens."""
    low, high = DEFAULT_RUNNING
    wanted = case.max_running_requests
    if wanted is None:
        wanted = min(high, max(low, int(tokens / case.context_length * 512)))
    return min(wanted, tokens // 2)
