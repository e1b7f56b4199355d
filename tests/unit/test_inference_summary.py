"""What the summary of an inference run says."""

from __future__ import annotations

import io

from llmsys_exp.report.console import Console
from llmsys_exp.report.inference_summary import show_inference

FIGURES = {
    "engine": "sglang",
    "engine_version": "0.5.17",
    "prompts": 805,
    "prompt_tokens": 34_000,
    "new_tokens": 270_720,
    "tokens_per_s": 14_578.2,
    "time_s": {"load": 52.0, "warm_up": 1.0, "generate": 18.6},
    "prefill_tokens_per_s": None,
    "first_token_s": {"mean": 0.05, "p50": 0.04, "p90": 0.06, "p99": 0.09},
    "latency_s": {"mean": 9.0, "p50": 9.1, "p90": 15.0, "p99": 18.0},
    "cached_tokens": 1_700,
    "cache_hit_rate": 0.05,
    "kv_tokens": {"planned": 1_000, "engine": 1_002},
    "retractions": 3,
    "aborted": 0,
}
PARTED = {"index": 4, "token": 7, "engine": 1, "transformers": 2, "of": 12}


def said(**changes: object) -> str:
    stream = io.StringIO()
    show_inference(Console(stream, colour=False, width=200), {**FIGURES, **changes})
    return " ".join(stream.getvalue().split())


def test_work_speed_cache_and_pool_are_told():
    text = said()
    assert "Engine: sglang 0.5.17" in text
    assert "805 prompts, 34,000 tokens in, 270,720 out" in text
    assert "14,578.2 new tokens/s" in text and "prefill" not in text
    assert "p50 40.0 ms" in text and "p99 18.0 s" in text
    assert "5.0 % of the prompt tokens (1,700)" in text
    assert "1,002 tokens; planned 1,000, off by +0.20 %" in text
    assert "the KV pool was full" in text and "aborted" not in text and "compared" not in text


def test_what_the_comparison_found_is_told():
    assert "8 of 8 greedy answers are those of transformers" in said(
        compare={"prompts": 8, "equal": 8, "share": 1.0, "differences": []}
    )
    text = said(compare={"prompts": 8, "equal": 7, "share": 0.875, "differences": [PARTED]})
    assert "7 of 8 greedy answers are those of transformers; parted: prompt 5 at token 8" in text
