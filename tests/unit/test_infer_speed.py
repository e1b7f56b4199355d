"""The inference benchmark: the same work for all programs, and a verdict that sees what falls short."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import infer_speed
from benchmarks.infer_rivals import BENCH, LOOP, OURS, inputs, plain_loop, programs
from benchmarks.infer_rivals.job import CPU_ARGUMENTS, CUDA_ARGUMENTS, Job
from llmsys_exp.config.compose import compose_config

JOB = Job(
    "/tmp/nowhere", "qwen2_5_7b", "sglang", "cuda", 805, 7, (64, 8), 50.0, 300.0, 0.5, 1024, CUDA_ARGUMENTS
)
TINY = replace(JOB, model="tiny", device="cpu", prompts=12, arguments=CPU_ARGUMENTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A small job whose files are there."""
    job = replace(TINY, work=str(tmp_path_factory.mktemp("infer_speed")))
    inputs.make_inputs(job)
    return job


def row(job: Job, name: str, seconds: float, **more: Any) -> dict[str, Any]:
    """A program that did all the work in so many seconds."""
    tokens = sum(one["max_new_tokens"] for one in job.rows())
    done = {"prompts": job.prompts, "output_tokens": tokens, **more}
    speed = done["output_tokens"] / seconds
    return {
        "program": name,
        "status": "ok",
        "seconds": seconds,
        "wall_s": seconds,
        "tokens_per_s": speed,
        **done,
    }


def test_lengths_are_drawn_once_with_the_stated_mean():
    rows = inputs.make_rows(JOB)
    lengths = [one["max_new_tokens"] for one in rows]
    assert rows == inputs.make_rows(JOB)
    assert len({one["instruction"] for one in rows}) == 805
    assert 325 < statistics.mean(lengths) < 355
    assert 285 < statistics.median(lengths) < 315
    assert min(lengths) >= inputs.LEAST_TOKENS
    assert max(lengths) <= 1024


def test_both_prompt_files_ask_for_the_same_work(made: Job):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.model_folder)
    pairs = [one["conversations"] for one in json.loads(made.conversations_file.read_text())]
    asked = [(question["value"], len(tokenizer.encode(answer["value"]))) for question, answer in pairs]
    assert asked == [(one["instruction"], one["max_new_tokens"]) for one in made.rows()]
    assert len(tokenizer) == inputs.TINY["vocab_size"]
    config = json.loads((made.model_folder / "config.json").read_text())
    assert tokenizer.eos_token_id == config["eos_token_id"]
    # what random weights pick has a text
    assert all(tokenizer.decode([one]) for one in (5000, 7000, 8000))


@pytest.mark.parametrize("job", [JOB, TINY, replace(TINY, engine="transformers", arguments={})])
def test_our_command_line_composes_to_what_the_rivals_get(job: Job):
    config = compose_config(programs.overrides(job))
    settings, chosen = config.inference, job.arguments
    assert (settings.engine, settings.ignore_eos, settings.template) == (job.engine, True, "none")
    assert settings.order.name == "prefix"  # not by the lengths, which nobody knows beforehand
    assert settings.sampling.top_p == job.top_p
    have = {**vars(settings.sglang), **settings.sglang.arguments}
    assert {key: have[key] for key in chosen} == chosen


def test_sglangs_benchmark_gets_the_same_arguments_as_flags():
    found = programs.flags({"mem_fraction_static": 0.8, "disable_prefill_cuda_graph": True, "off": False})
    assert found == ["--mem-fraction-static", "0.8", "--disable-prefill-cuda-graph"]


def test_rivals_run_where_sglang_is():
    """SGLang may have an interpreter of its own; without it, our own environment runs everything."""
    command = programs.plain_loop(replace(JOB, sglang_python="/else/python"), 0).command
    assert command[0] == "/else/python"
    assert programs.plain_loop(replace(TINY, engine="transformers"), 0).command[0] == sys.executable


def test_the_loop_takes_batch_after_batch_and_stops_at_its_limit():
    rows = [{"instruction": "a", "max_new_tokens": n} for n in (1, 2, 3)]
    batches: list[int] = []

    def answer(batch: list[dict[str, Any]]) -> int:
        batches.append(len(batch))
        return sum(one["max_new_tokens"] for one in batch)

    told = plain_loop.loop(rows, 2, answer, limit_s=60)
    assert (batches, told["output_tokens"], told["prompts"]) == ([2, 1], 6, 3)
    assert plain_loop.loop(rows, 2, answer, limit_s=0)["prompts"] == 0


def test_all_goals_met_says_nothing(made: Job):
    job = replace(made, device="cuda")
    rows = [row(job, LOOP, 40, batch=8), row(job, OURS, 20), row(job, BENCH, 20)]
    assert infer_speed.misses(rows, job) == []
    assert infer_speed.ratios(rows) == {"plain_loop 8": 2.0, "sglang_bench": 1.0}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"program": LOOP, "seconds": 25, "batch": 8}, "of plain_loop 8, wanted 1.5"),
        ({"program": BENCH, "seconds": 19}, "of sglang_bench, wanted 0.98"),
        ({"program": BENCH, "seconds": 20, "output_tokens": 5}, "sglang_bench: output_tokens 5 and not"),
        ({"program": OURS, "seconds": 20, "prompts": 11}, "llmsys: prompts 11 and not 12"),
    ],
)
def test_what_falls_short_is_told(made: Job, changed: dict[str, Any], told: str):
    job = replace(made, device="cuda")
    good = [
        {"program": LOOP, "seconds": 40, "batch": 8},
        {"program": OURS, "seconds": 20},
        {"program": BENCH, "seconds": 20},
    ]
    how = [changed if one["program"] == changed["program"] else one for one in good]
    rows = [row(job, one["program"], **{key: one[key] for key in one if key != "program"}) for one in how]
    assert any(told in text for text in infer_speed.misses(rows, job))


def test_a_loop_that_was_cut_counts_by_its_speed(made: Job):
    job = replace(made, device="cuda")
    whole = row(job, OURS, 20)
    cut = row(job, LOOP, 30, batch=8, prompts=6, output_tokens=whole["output_tokens"] // 2)
    assert infer_speed.misses([cut, whole], job) == []
    assert infer_speed.ratios([cut, whole])["plain_loop 8"] == pytest.approx(3, rel=0.02)


def test_a_program_that_fails_or_hangs_is_told_and_leaves_nothing(made: Job):
    def nothing() -> list[dict[str, Any]]:
        return [json.loads(Path(made.work, "absent").read_text())]

    command = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(60)"]
    hung = programs.Program(OURS, command, nothing)
    (found,) = infer_speed.measure(hung, made, number=0, limit_s=1.5)
    assert found["status"] == "failed"
    assert "ended by its limit" in found["log"]
    assert found["wall_s"] < 30
    command = [sys.executable, "-c", "raise SystemExit('no GPU')"]
    (found,) = infer_speed.measure(programs.Program(BENCH, command, nothing), made, number=1, limit_s=20)
    assert "ended with 1: no GPU" in found["log"]
    assert infer_speed.misses([found], made)[0].startswith("sglang_bench failed")
