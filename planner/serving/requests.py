"""How many requests of given lengths a pool holds.

Source: SGLang 0.5.17 `srt/managers/schedule_policy.py: PrefillAdder` (admission) and
`_swa_reserved_tokens` (window layers); `srt/environ.py` (new-token ratio 0.7, at most 4096 tokens reserved).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.serving.case import ServingCase
from planner.serving.kv import Cell, Pool
from planner.units import ceil_div, round_up

RESERVED_OUTPUT = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
NEW_TOKEN_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO, at schedule_conservativeness 1


@dataclass(frozen=True)
class Load:
    """Requests of one replica: at full length, half-way through the output, and let in at once."""

    requests: int
    requests_mean: int
    admitted: int
    limited_by: str


def load_of(case: ServingCase, pool: Pool, cell: Cell, slots: int) -> Load | None:
    """Requests that a pool holds; None where the case gives no lengths."""
    length = case.request_tokens
    if length is None:
        return None
    given, output = case.input_tokens or 1, case.output_tokens or 1
    by_window = pool.window_tokens // _window_tokens(case, cell, length) if cell.window_bytes else slots
    by_tokens = pool.tokens // round_up(length, case.page_size)
    by_mean = pool.tokens // round_up(given + ceil_div(output, 2), case.page_size)
    reserved = min(output, RESERVED_OUTPUT)
    fresh = 1 + int((pool.tokens - given - reserved) // (given + NEW_TOKEN_RATIO * reserved))
    requests = min(by_tokens, by_window, slots)
    causes = {by_window: "pool of window layers", by_tokens: "KV pool", slots: "max_running_requests"}
    return Load(
        requests=requests,
        requests_mean=min(by_mean, by_window, slots),
        admitted=max(0, min(fresh, by_window, slots)),
        limited_by=causes[requests],
    )


def tokens_for(case: ServingCase, cell: Cell, requests: int) -> int:
    """Pool tokens that so many full-length requests need; with none, what a start needs."""
    length = case.request_tokens
    tokens, windowed = max(2, case.page_size), cell.window + case.page_size + 1
    if requests and length is not None:
        tokens = max(2 * requests, requests * round_up(length, case.page_size))
        windowed = max(windowed, requests * _window_tokens(case, cell, length))
    if not cell.window_bytes:
        return tokens
    return max(tokens, int(-(-(windowed + case.page_size) // case.swa_full_tokens_ratio)))


def _window_tokens(case: ServingCase, cell: Cell, length: int) -> int:
    return min(length, cell.window) + case.page_size
