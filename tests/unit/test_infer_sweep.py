"""A sweep of inference runs: which points there are, which share an engine, and what their figures say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.cli.infer_points import combinations, values_of
from llmsys_exp.errors import UserError
from llmsys_exp.report.console import Console
from llmsys_exp.report.infer_rows import FIGURES, lines_of, swept
from llmsys_exp.report.infer_sweep import show_sweep, write_sweep
from llmsys_exp.report.infer_words import explain

BATCH, FRACTION = "inference.batch_size", "inference.sglang.mem_fraction_static"
TEMPERATURE = "inference.sampling.temperature"


def row(number: int, overrides: dict[str, str], **figures: Any) -> dict[str, Any]:
    known = {"prompts": 100, "prompt_tokens": 4000, "new_tokens": 10_000, "stopped": 50, "seconds": 10.0}
    return {
        "point": number,
        "overrides": overrides,
        "state": "complete",
        "folder": f"/runs/{number}",
        "error": None,
        **dict.fromkeys(FIGURES),
        **known,
        "tokens_per_s": 1000.0,
        "retractions": 0,
        **figures,
    }


def test_one_at_a_time_keeps_the_others_at_their_first_value() -> None:
    lists = values_of(["a=1,2,3", "name=x", "b=range(4,6)"])
    assert lists == [["a=1", "a=2", "a=3"], ["name=x"], ["b=4", "b=5"]]
    apart = combinations(lists, one_at_a_time=True)
    assert apart == [("a=1", "name=x", "b=4"), ("a=2", "name=x", "b=4"), ("a=3", "name=x", "b=4"),
                     ("a=1", "name=x", "b=5")]  # fmt: skip
    assert len(combinations(lists, one_at_a_time=False)) == 6
    with pytest.raises(UserError, match="no list of values"):
        values_of(["a=interval(0,1)"])


def test_values_come_in_their_order_and_lines_hold_one_setting_apart() -> None:
    rows = [
        row(1, {BATCH: "all", TEMPERATURE: "0"}),
        row(2, {BATCH: "16", TEMPERATURE: "0"}),
        row(3, {BATCH: "2", TEMPERATURE: "0"}),
        row(4, {BATCH: "all", TEMPERATURE: "0.7"}),
        row(5, {BATCH: "2", TEMPERATURE: "1.0"}, state="failed"),
    ]
    assert swept(rows)[BATCH] == ["2", "16", "all"]
    [line] = lines_of(rows, BATCH)
    assert [one["point"] for one in line] == [3, 2, 1]
    assert [one["point"] for one in lines_of(rows, TEMPERATURE)[0]] == [1, 4]


WORDS = {
    "more requests at a time": (
        [
            row(1, {BATCH: "1"}, tokens_per_s=100.0, at_a_time=1, latency_p50_s=1.0),
            row(2, {BATCH: "32"}, tokens_per_s=790.0, at_a_time=32, latency_p50_s=4.0),
        ],
        "batch_size 1 -> 32: 7.9x tokens/s (100 -> 790); up to 32 requests decode together in place of 1, "
        "each taking 4x as long",
    ),
    "a pool that held all": (
        [row(1, {FRACTION: "0.5"}, kv_engine=20_000), row(2, {FRACTION: "0.8"}, kv_engine=50_000)],
        "mem_fraction_static 0.5 -> 0.8: no change of speed (1,000 tokens/s); KV pool 20,000 -> 50,000 tokens, "
        "and the smaller one held all requests at once",
    ),
    "a pool that was full": (
        [
            row(1, {FRACTION: "0.5"}, kv_engine=2000, retractions=40, tokens_per_s=500.0),
            row(2, {FRACTION: "0.8"}, kv_engine=50_000),
        ],
        "mem_fraction_static 0.5 -> 0.8: 2x tokens/s (500 -> 1,000); KV pool 2,000 -> 50,000 tokens; "
        "retractions 40 -> 0: requests that found the KV pool full",
    ),
    "longer answers": (
        [row(1, {TEMPERATURE: "0"}), row(2, {TEMPERATURE: "1"}, new_tokens=20_000, stopped=10)],
        "temperature 0 -> 1: no change of speed (1,000 tokens/s); answers have 200 tokens on average, not 100 "
        "(50 % -> 10 % end by themselves)",
    ),
    "a cache that helps": (
        [
            row(1, {"inference.order": "file"}, cache_hit_rate=0.1),
            row(2, {"inference.order": "prefix"}, cache_hit_rate=0.6, tokens_per_s=1500.0),
        ],
        "order file -> prefix: 1.5x tokens/s (1,000 -> 1,500); 10 % -> 60 % of the prompt tokens come from the "
        "prefix cache",
    ),
}


@pytest.mark.parametrize(("rows", "expected"), WORDS.values(), ids=WORDS)
def test_words_follow_from_the_figures(rows: list[dict[str, Any]], expected: str) -> None:
    assert explain(rows) == [expected]


def test_table_files_and_pictures_are_written(tmp_path: Path) -> None:
    rows = [
        row(1, {BATCH: "1", "name": "x"}, tokens_per_s=100.0, start_s=9.5, latency_p50_s=1.0),
        row(2, {BATCH: "8", "name": "x"}, tokens_per_s=650.0, start_s=0.0, latency_p50_s=1.2),
        row(3, {BATCH: "all", "name": "x"}, state="failed", error="The GPU ran out of memory."),
    ]
    stream = io.StringIO()
    show_sweep(Console(stream), rows)
    shown = stream.getvalue()
    for text in ("batch_size", "warm", "9.50 s", "650", "point 3 failed: The GPU ran out of memory."):
        assert text in shown
    assert "KV engine" not in shown  # nobody has one
    assert write_sweep(tmp_path, rows, title="mine") == []
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"sweep.csv", "sweep.parquet", "changes.txt", "batch_size.png"}
    assert (tmp_path / "batch_size.png").read_bytes()[:4] == b"\x89PNG"
    header, *lines = (tmp_path / "sweep.csv").read_text(encoding="utf-8").splitlines()
    assert header.startswith("point,inference.batch_size,name,state,seconds")
    assert len(lines) == 3
