"""Figures of an inference run: tokens, rates, latencies, cache hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmsys_exp.workers.engines.base import ABORT, STOP

Answer = Mapping[str, Any]
PERCENTILES = (50, 90, 99)


def answer_figures(answers: Sequence[Answer], *, seconds: float) -> dict[str, Any]:
    """Sum up all answers of a run.

    Args:
        answers: one mapping an answer, as in the journal.
        seconds: time that was spent on them, over all starts.
    """
    prompt_tokens = sum(one["prompt_tokens"] for one in answers)
    new_tokens = sum(one["new_tokens"] for one in answers)
    cached = [one["cached_tokens"] for one in answers if one["cached_tokens"] is not None]
    told = sum(one["prompt_tokens"] for one in answers if one["cached_tokens"] is not None)
    first = [one["first_token_s"] for one in answers if one["first_token_s"] is not None]
    return {
        "prompts": len(answers),
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "stopped": sum(one["finish"] == STOP for one in answers),
        "aborted": sum(one["finish"] == ABORT for one in answers),
        "seconds": seconds,
        "tokens_per_s": rate(new_tokens, seconds),
        "total_tokens_per_s": rate(prompt_tokens + new_tokens, seconds),
        "latency_s": spread([one["latency_s"] for one in answers if one["finish"] != ABORT]),
        "first_token_s": spread(first),
        "cached_tokens": sum(cached) if cached else None,
        "cache_hit_rate": sum(cached) / told if told else None,
        "retractions": sum(one["retractions"] for one in answers),
    }


def engine_rates(
    asked: Sequence[Answer], before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float | None]:
    """Return prompt and answer tokens a second of the time that the engine spent on each.

    Known where the engine keeps the two apart and says so by the counters `prefill_s` and `decode_s`; tokens
    from the prefix cache are not computed and do not count.
    """

    def spent(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    computed = sum(one["prompt_tokens"] - (one["cached_tokens"] or 0) for one in asked)
    # the first new token of each answer comes out of its prompt's pass
    decoded = sum(max(0, one["new_tokens"] - 1) for one in asked)
    return {
        "prefill_tokens_per_s": rate(computed, spent("prefill_s")),
        "decode_tokens_per_s": rate(decoded, spent("decode_s")),
    }


def kv_tokens(planned: int | None, engine: int | None) -> dict[str, Any] | None:
    """Put the planned room of the KV pool beside that which the engine reports; None where neither is known.

    `error` is how much more the engine has than was planned, as a share of the plan.
    """
    if planned is None and engine is None:
        return None
    error = engine / planned - 1 if planned and engine is not None else None
    return {"planned": planned, "engine": engine, "error": error}


def rate(count: float, seconds: float) -> float | None:
    """Return a count by second; None where no time was spent."""
    return count / seconds if seconds > 0 else None


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean and percentiles; None of nothing."""
    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    named = {f"p{one}": float(value) for one, value in zip(PERCENTILES, found, strict=True)}
    return {"mean": float(np.mean(values)), **named}
