"""A sweep of inference runs: which points there are, which share an engine, and what their figures say."""

from __future__ import annotations

import io
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmsys_exp.cli.infer_points import combinations, values_of
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import Step
from llmsys_exp.errors import UserError
from llmsys_exp.jobs.infer_sweep import SweepPoint, share_starts
from llmsys_exp.jobs.inference import InferJob
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.serving import Served
from llmsys_exp.plan.serving import serving_plan
from llmsys_exp.report.console import Console
from llmsys_exp.report.infer_rows import FIGURES, lines_of, sweep_row, swept
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


def planned_points(*changes: dict[str, Any]) -> list[SweepPoint]:
    """One point for each set of `memory_gib`, `limit` and `max_new_tokens`, with the plan of an SGLang start."""
    base = compose_config(["steps=[infer]", "model=qwen2_5_7b", "hardware=rtx4090", "inference=sglang"])
    nothing: Any = SimpleNamespace(model_folder=None, adapter_folder=None)
    points = []
    for number, change in enumerate(changes, start=1):
        config = deepcopy(base)
        config.hardware.memory_gib = change.get("memory_gib", 24.0)
        config.inference.limit = change.get("limit", 100)
        config.inference.sampling.max_new_tokens = change["new"]
        served = Served(serving_plan(config, prompts_file=None, engine_version="0.5.17"), str(number))
        run = Run(config, [Step.infer], ())
        points.append(SweepPoint(number, (), run, job=InferJob(run, served, (), nothing, "python", ())))
    share_starts(points)
    return points


def keys(points: list[SweepPoint]) -> list[str]:
    return [point.job.served.engine_key for point in points if point.job is not None]


def test_a_start_is_shared_by_all_that_it_covers() -> None:
    assert keys(planned_points({"new": 100}, {"new": 20_000}, {"new": 200})) == ["2", "2", "2"]
    # the longer context was started for few requests at a time, which would slow the other point
    assert keys(planned_points({"new": 100, "limit": 200}, {"new": 20_000, "limit": 4})) == ["1", "2"]


def test_a_start_that_does_not_fit_is_shared_with_no_other_point() -> None:
    points = planned_points(*({"new": new, "memory_gib": 17} for new in (100, 31_000, 50)))
    fits = [point.job.served.plan.fits for point in points if point.job is not None]
    assert (fits, keys(points)) == ([True, False, True], ["1", "2", "1"])


def test_requests_at_a_time_are_those_of_all_replicas() -> None:
    started = {"settings": {"max_running_requests": 64, "dp_size": 2}}
    infer = {"prompts": 800, "settings": {"batch_size": "all"}, "started": started}
    point = SweepPoint(1, (), None, state="complete", manifest={"results": {"infer": infer}})
    assert sweep_row(point)["at_a_time"] == 128
    started["settings"]["max_running_requests_per_replica"] = 50
    assert sweep_row(point)["at_a_time"] == 100


WORDS = {
    "more requests at a time": (
        [
            row(1, {BATCH: "1"}, tokens_per_s=100.0, at_a_time=1, latency_p50_s=1.0),
            row(2, {BATCH: "32"}, tokens_per_s=790.0, at_a_time=32, latency_p50_s=4.0),
        ],
        "batch_size 1 -> 32: 7.9x tokens/s (100 -> 790); up to 32 requests decode together in place of 1, "
        "the median answer taking 4x as long",
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
    "a smaller pool that may have let requests wait": (
        [row(1, {FRACTION: "0.5"}, kv_engine=2000), row(2, {FRACTION: "0.8"}, kv_engine=50_000)],
        "mem_fraction_static 0.5 -> 0.8: no change of speed (1,000 tokens/s); KV pool 2,000 -> 50,000 tokens, "
        "and nothing was retracted from the smaller one",
    ),
    "a value that was run twice": (
        [row(1, {BATCH: "2"}), row(2, {BATCH: "2"}, tokens_per_s=500.0), row(3, {BATCH: "4"})],
        "batch_size 2 -> 4: no change of speed (1,000 tokens/s)",
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
