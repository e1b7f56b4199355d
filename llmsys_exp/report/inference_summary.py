"""What came of an inference run: figures of the engine, in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.report.console import Console, duration

LATE = "p99"


def show_inference(console: Console, infer: Mapping[str, Any]) -> None:
    """Write what the engine did: work, speed, latency, cache, memory."""
    console.title(f"Engine: {' '.join(filter(None, (infer.get('engine'), infer.get('engine_version'))))}")
    console.table(inference_rows(infer))


def inference_rows(infer: Mapping[str, Any]) -> list[list[str]]:
    """Return what the engine did as pairs of a title and words."""
    rows = [
        _work(infer),
        _speed(infer),
        *_latencies(infer),
        _cache(infer),
        _kv(infer),
        _compared(infer),
        *_trouble(infer),
    ]
    return [row for row in rows if row]


def _work(infer: Mapping[str, Any]) -> list[str] | None:
    if "prompts" not in infer or "new_tokens" not in infer:
        return None
    times = infer.get("time_s") or {}
    parts = [f"{name.replace('_', '-')} {duration(times[name])}" for name in times if times[name] is not None]
    text = f"{infer['prompts']:,} prompts, {infer['prompt_tokens']:,} tokens in, {infer['new_tokens']:,} out"
    return ["work", text + (f"; {', '.join(parts)}" if parts else "")]


def _speed(infer: Mapping[str, Any]) -> list[str] | None:
    if infer.get("tokens_per_s") is None:
        return None
    text = f"{infer['tokens_per_s']:,.1f} new tokens/s"
    for name in ("prefill", "decode"):
        if infer.get(f"{name}_tokens_per_s") is not None:
            text += f"; {name} {infer[f'{name}_tokens_per_s']:,.1f} tokens/s"
    return ["speed", text]


def _latencies(infer: Mapping[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    for key, title in (("first_token_s", "first token"), ("latency_s", "whole answer")):
        found = infer.get(key) or {}
        if found.get("p50") is not None:
            names = [name for name in ("mean", "p50", "p90", LATE) if found.get(name) is not None]
            rows.append([title, ", ".join(f"{name} {seconds_text(found[name])}" for name in names)])
    return rows


def _cache(infer: Mapping[str, Any]) -> list[str] | None:
    rate = infer.get("cache_hit_rate")
    if rate is None:
        return None
    return ["prefix cache", f"{100 * rate:.1f} % of the prompt tokens ({infer.get('cached_tokens') or 0:,})"]


def _kv(infer: Mapping[str, Any]) -> list[str] | None:
    tokens = infer.get("kv_tokens") or {}
    if not tokens.get("engine"):
        return None
    text = f"{tokens['engine']:,} tokens"
    if tokens.get("planned"):
        off = tokens["engine"] / tokens["planned"] - 1
        text += f"; planned {tokens['planned']:,}, off by {100 * off:+.2f} %"
    return ["KV pool", text]


def _compared(infer: Mapping[str, Any]) -> list[str] | None:
    found = infer.get("compare")
    if not found:
        return None
    text = f"{found['equal']} of {found['prompts']} greedy answers are those of transformers"
    if found["differences"]:
        parted = ", ".join(
            f"prompt {one['index'] + 1} at token {one['token'] + 1}" for one in found["differences"]
        )
        text += f"; parted: {parted}"
    return ["compared", text]


def _trouble(infer: Mapping[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    if infer.get("retractions"):
        rows.append(["retractions", f"{infer['retractions']:,}: the KV pool was full, work was done twice"])
    if infer.get("aborted"):
        rows.append(["aborted", f"{infer['aborted']:,} prompts have no whole answer: see their `error`"])
    return rows


def seconds_text(seconds: float) -> str:
    """Write a short time with the digits that matter."""
    if seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
