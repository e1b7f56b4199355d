"""What each swept setting changed, and why, in words: derived from the figures that the engine left.

Nothing is said that the rows do not hold. Where no figure explains a change, the change stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmsys_exp.report.infer_rows import Row, lines_of, swept
from llmsys_exp.report.plan_rows import short_names

SAME = 0.05
"""Share below which two speeds count as the same: runs differ by as much from one time to the next."""
MOST_LINES = 12


def explain(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each setting and value, compared with the first value of the setting."""
    names = short_names(list(swept(rows)))
    said: list[str] = []
    for key, name in names.items():
        groups = lines_of(rows, key)
        # the others at their first values: who sweeps a grid reads the rest in the table
        first, *rest = groups[0] if groups else [{}]
        # a value that was run twice tells how much runs differ, and not what the setting does
        changed = [row for row in rest if row["overrides"][key] != first["overrides"][key]]
        said += [_sentence(key, name, first, row) for row in changed]
    return said[:MOST_LINES]


def _sentence(key: str, name: str, before: Row, after: Row) -> str:
    change = _change(before, after)
    why = [text for text in _reasons(key, before, after) if text]
    old, new = before["overrides"][key], after["overrides"][key]
    return f"{name} {old} -> {new}: {'; '.join([change, *why])}"


def _change(before: Row, after: Row) -> str:
    old, new = before["tokens_per_s"], after["tokens_per_s"]
    if not old or not new:
        return "no tokens were measured"
    ratio = new / old
    if abs(ratio - 1) <= SAME:
        return f"no change of speed ({_speed(new)} tokens/s)"
    return f"{ratio:.2g}x tokens/s ({_speed(old)} -> {_speed(new)})"


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _reasons(key: str, before: Row, after: Row) -> list[str]:
    last = key.rsplit(".", 1)[-1]
    first = _REASONS.get(last)
    found = [first(before, after)] if first else []
    if first is not _answers:
        found.append(_answers(before, after) if _lengths_differ(before, after) else "")
    if first is not _cache:
        found.append(_cache(before, after))
    return [*found, _retractions(before, after)]


def _batch(before: Row, after: Row) -> str:
    old, new = before["at_a_time"], after["at_a_time"]
    if not old or not new:
        return ""
    if old == new:
        return f"in both, up to {new:,} requests are answered together"
    text = f"up to {new:,} requests decode together in place of {old:,}"
    if before["latency_p50_s"] and after["latency_p50_s"]:
        text += f", the median answer taking {after['latency_p50_s'] / before['latency_p50_s']:.2g}x as long"
    return text


def _pool(before: Row, after: Row) -> str:
    old, new = before["kv_engine"], after["kv_engine"]
    if not old or not new:
        return ""
    text = f"KV pool {old:,} -> {new:,} tokens"
    if not _same_speed(before, after):
        return text
    small, row = (old, before) if old < new else (new, after)
    if small >= row["prompt_tokens"] + row["new_tokens"]:
        return f"{text}, and the smaller one held all requests at once"
    # one that is full lets requests wait, and shows it by retractions only where it was too hopeful
    return text if row["retractions"] else f"{text}, and nothing was retracted from the smaller one"


def _answers(before: Row, after: Row) -> str:
    old, new = _mean(before), _mean(after)
    if old is None or new is None:
        return ""
    ended = [f"{100 * row['stopped'] / row['prompts']:.0f} %" for row in (before, after)]
    if not _lengths_differ(before, after):
        return f"answers are as long ({new:,.0f} tokens on average)"
    how = f"{' -> '.join(dict.fromkeys(ended))} end by themselves"
    return f"answers have {new:,.0f} tokens on average, not {old:,.0f} ({how})"


def _cache(before: Row, after: Row) -> str:
    old, new = before["cache_hit_rate"], after["cache_hit_rate"]
    if old is None or new is None or abs(new - old) < 0.01:
        return ""
    return f"{100 * old:.0f} % -> {100 * new:.0f} % of the prompt tokens come from the prefix cache"


def _retractions(before: Row, after: Row) -> str:
    old, new = before["retractions"] or 0, after["retractions"] or 0
    return "" if old == new else f"retractions {old:,} -> {new:,}: requests that found the KV pool full"


def _lengths_differ(before: Row, after: Row) -> bool:
    old, new = _mean(before), _mean(after)
    return bool(old and new) and abs(new / old - 1) > SAME  # type: ignore[operator]


def _same_speed(before: Row, after: Row) -> bool:
    old, new = before["tokens_per_s"], after["tokens_per_s"]
    return bool(old and new) and abs(new / old - 1) <= SAME


def _mean(row: Row) -> float | None:
    return row["new_tokens"] / row["prompts"] if row["prompts"] and row["new_tokens"] else None


_REASONS: dict[str, Callable[[Row, Row], str]] = {
    "batch_size": _batch,
    "max_running_requests": _batch,
    "limit": _batch,
    "mem_fraction_static": _pool,
    "max_total_tokens": _pool,
    "kv_cache_dtype": _pool,
    "dp_size": _pool,
    "tp_size": _pool,
    "temperature": _answers,
    "top_p": _answers,
    "top_k": _answers,
    "max_new_tokens": _answers,
    "order": _cache,
    "schedule_policy": _cache,
}
"""By the last part of a setting: what of the engine it works through."""
