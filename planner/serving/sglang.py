"""How SGLang divides a card: weights, KV pool, and what must fit beside them.

Source: SGLang 0.5.17-0.5.23, `srt/arg_groups/memory_hook.py: handle_gpu_memory_settings` (default
fraction), `srt/mem_cache/kv_cache_configurator.py: _profile_available_bytes` and
`srt/model_executor/pool_configurator.py` (pool). The fraction is of the memory that is free before the
weights load, not of the card.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from planner.architecture.spec import Architecture
from planner.network.build import build_network
from planner.serving.case import ServingCase
from planner.tables import constant_bytes
from planner.training_case import Method, TrainingCase
from planner.units import DTYPE_BYTES, GIB, MIB, ceil_div, gib

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
REQUEST_ROW_EXTRA = 4  # req_to_token has context_len + 4 columns
DEFAULT_RUNNING = (2048, 4096)
FREE_SHARE_BYTES = int(0.5 * GIB)  # context and libraries, where the free memory is not given


@dataclass(frozen=True)
class ServingForecast:
    """What an engine start would show. Sizes in bytes, per GPU."""

    mem_fraction_static: float
    weights_bytes: int
    kv_tokens: int
    kv_pool_bytes: int
    request_table_bytes: int
    graphs_bytes: int
    free_after_start_bytes: int
    starts: bool
    minimum_mem_fraction_static: float
    seconds: float
    tier: str = "formula"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, memory in GiB."""
        parts = {
            "weights": self.weights_bytes,
            "kv_pool": self.kv_pool_bytes,
            "request_table": self.request_table_bytes,
            "graphs": self.graphs_bytes,
        }
        return {
            "tier": self.tier,
            "mem_fraction_static": self.mem_fraction_static,
            "weights_gib": round(gib(self.weights_bytes), 4),
            "kv_tokens": self.kv_tokens,
            "kv_pool_gib": round(gib(self.kv_pool_bytes), 4),
            "request_table_gib": round(gib(self.request_table_bytes), 4),
            "graphs_gib": round(gib(self.graphs_bytes), 4),
            "free_after_start_gib": round(gib(self.free_after_start_bytes), 4),
            "starts": self.starts,
            "minimum_mem_fraction_static": self.minimum_mem_fraction_static,
            "components": {k: round(gib(v), 4) for k, v in parts.items()},
            "seconds": round(self.seconds, 4),
        }


def forecast_serving(case: ServingCase) -> ServingForecast:
    """Divide the card as the engine would."""
    began = time.perf_counter()
    chunk, graph_batch = engine_defaults(case)
    fraction = case.mem_fraction_static or default_fraction(case, chunk, graph_batch)
    free = case.free_before_weights_bytes or case.total_bytes - FREE_SHARE_BYTES
    weights = weights_bytes(case)
    cell = kv_bytes_per_token(case)
    rest = int(free * fraction) - weights
    tokens = max(0, rest // cell)
    requests = case.max_running_requests or default_running_requests(tokens, case.context_length)
    table = (requests + 1) * (case.context_length + REQUEST_ROW_EXTRA) * 4
    graphs = graph_bytes(case, graph_batch)
    headroom = free - int(free * fraction) - table - graphs
    return ServingForecast(
        mem_fraction_static=fraction,
        weights_bytes=weights,
        kv_tokens=tokens,
        kv_pool_bytes=tokens * cell,
        request_table_bytes=table,
        graphs_bytes=graphs,
        free_after_start_bytes=headroom,
        starts=tokens > 0 and headroom > 0,
        minimum_mem_fraction_static=min(0.999, ceil_div((weights + cell) * 1000, free) / 1000),
        seconds=time.perf_counter() - began,
    )


def engine_defaults(case: ServingCase) -> tuple[int, int]:
    """Chunked prefill tokens and decode graph batch that the engine picks for this card."""
    early = _version(case.engine_version) < (0, 5, 18)
    for below, chunk, small_tp, large_tp in TIERS_0_5_17 if early else TIERS_0_5_23:
        if case.total_mib < below:
            batch = large_tp if case.tp_size >= 4 else small_tp
            return case.chunked_prefill_size or chunk, case.cuda_graph_max_bs or batch
    raise AssertionError("the last tier has no upper end")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def default_fraction(case: ServingCase, chunk: int, graph_batch: int) -> float:
    """`mem_fraction_static` when the user gives none.

    >>> from planner.serving.case import parse_serving_case
    >>> qwen = {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    ...         "vocab_size": 152064, "num_hidden_layers": 28, "num_attention_heads": 28,
    ...         "num_key_value_heads": 4}
    >>> case = parse_serving_case({"kind": "serve", "engine_version": "0.5.17", "hf_config": qwen,
    ...                            "gpu": {"total_mib": 143771}})
    >>> default_fraction(case, 8192, 256)
    0.903
    """
    reserved_mib = (
        512
        + 1.5 * max(chunk, 2048)
        + 1024 * case.tp_size / 8
        + 2 * graph_batch
        + (8 * len(prefill_capture_sizes(chunk)) if case.prefill_cuda_graph else 0)
    )
    if case.total_mib > LARGE_CARD_MIB:
        reserved_mib = max(reserved_mib, LARGE_CARD_RESERVE_MIB)
    return round((case.total_mib - reserved_mib) / case.total_mib, 3)


def prefill_capture_sizes(chunk: int) -> list[int]:
    """Token counts at which the engine captures prefill graphs.

    >>> [len(prefill_capture_sizes(c)) for c in (2048, 4096, 8192, 16384)]
    [42, 50, 58, 74]
    """
    ranges = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for start, stop, step in ranges for size in range(start, stop, step)]
    sizes += range(4608, chunk + 1, 512)
    return [size for size in sizes if size <= chunk]


def weights_bytes(case: ServingCase) -> int:
    """Weights of one rank with the rotary table and what the loader leaves."""
    rotary = case.context_length * case.architecture.head_dim * 4
    parameters = parameter_count(case.architecture)
    return parameters * DTYPE_BYTES[case.dtype] // case.tp_size + rotary + constant_bytes("sglang_loader_gib")


def parameter_count(arch: Architecture) -> int:
    """Parameters of a model, tied weights once."""
    network = build_network(TrainingCase(architecture=arch, method=Method.full))
    return sum(p.numel for p in network.parameters())


def kv_bytes_per_token(case: ServingCase) -> int:
    """One token of the KV pool on one rank: keys and values of every layer."""
    arch = case.architecture
    heads = max(1, arch.kv_heads // case.tp_size)
    return (
        heads
        * 2  # keys and values
        * arch.head_dim
        * arch.layers
        * DTYPE_BYTES[case.kv_dtype]
    )


def default_running_requests(tokens: int, context_length: int) -> int:
    """`max_running_requests` when the user gives none."""
    low, high = DEFAULT_RUNNING
    wanted = min(high, max(low, int(tokens / context_length * 512)))
    return max(1, min(wanted, tokens // 2))


def graph_bytes(case: ServingCase, graph_batch: int) -> int:
    """Decode graphs: 2 MiB a captured batch row, as the engine's own reserve counts them (an upper bound)."""
    prefill = 8 * len(prefill_capture_sizes(engine_defaults(case)[0])) if case.prefill_cuda_graph else 0
    return (2 * graph_batch + prefill) * MIB
