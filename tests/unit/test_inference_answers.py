"""The journal of answers and the figures that come of it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from llmsys_exp.errors import UserError
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers.inference.answers import Journal, write_sample
from llmsys_exp.workers.inference.compare import compared
from llmsys_exp.workers.inference.figures import answer_figures, engine_rates, kv_tokens
from llmsys_exp.workers.inference.source import is_trained

KEY = {"prompts": "p", "sampling": "s", "model": "m", "engine": "e"}


def answer(index, **more):
    return {
        "index": index,
        "output": f"answer {index}",
        "prompt_tokens": 10,
        "new_tokens": 5,
        "cached_tokens": None,
        "finish": "length",
        "first_token_s": 0.1,
        "latency_s": 1.0 + index,
        "retractions": 0,
        "done_s": 2.0 + index,
        **more,
    }


def journal_of(paths, *answers, key=KEY):
    with Journal(paths, key) as journal:
        for one in answers:
            journal.add(one)
    return journal


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def test_a_second_start_has_what_was_finished_in_file_order(paths):
    first = journal_of(paths, answer(2), answer(0))
    assert first.resumed == 0 and first.seconds == 0
    again = journal_of(paths, answer(1))
    assert again.resumed == 2 and again.seconds == 4.0
    assert [one["index"] for one in again.in_file_order()] == [0, 1, 2]
    assert [json.loads(line)["index"] for line in paths.generations.open()] == [2, 0, 1]


@pytest.mark.parametrize("torn", [b'{"index": 7, "outp', b"\n", b"\0\0\0\n", b'"\xff'])
def test_a_torn_last_line_is_dropped(paths, torn):
    journal_of(paths, answer(0))
    whole = paths.generations.read_bytes()
    paths.generations.write_bytes(whole + torn)
    assert list(journal_of(paths).answers) == [0]
    assert paths.generations.read_bytes() == whole


def test_a_broken_line_before_others_is_refused_and_kept(paths):
    journal_of(paths, answer(0), answer(1))
    lines = paths.generations.read_bytes().splitlines(keepends=True)
    broken = lines[0][:20] + b"\n" + lines[1]
    paths.generations.write_bytes(broken)
    with pytest.raises(UserError, match=r"The line is no answer \(.*generations.jsonl, line 1\)"):
        journal_of(paths)
    assert paths.generations.read_bytes() == broken


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("prompts", "the prompts"),
        ("sampling", "sampling or seed"),
        ("model", "the model"),
        ("engine", "the engine"),
    ],
)
def test_answers_to_other_questions_are_refused_and_left_alone(paths, part, said):
    journal_of(paths, answer(0))
    before = paths.generations.read_bytes()
    with pytest.raises(UserError, match=f"other questions: {said}.* changed since"):
        journal_of(paths, key={**KEY, part: "another"})
    assert paths.generations.read_bytes() == before
    assert journal_of(paths).resumed == 1
    paths.journal_key.unlink()
    with pytest.raises(UserError, match=r"the prompts.* and sampling or seed and the model and the engine"):
        journal_of(paths)


def test_an_aborted_prompt_is_asked_again(paths):
    journal_of(paths, answer(0), answer(1, finish="abort", error="too long"))
    again = journal_of(paths, answer(1))
    assert again.resumed == 1 and again.answers[1]["finish"] == "length"


def test_every_nth_answer_goes_to_the_sample(paths):
    write_sample(paths.outputs, [answer(n) for n in range(7)], every=3)
    assert [json.loads(line)["index"] for line in paths.outputs.open()] == [0, 3, 6]


def test_figures_sum_up_tokens_latencies_and_cache_hits():
    answers = [answer(n, cached_tokens=8 if n else 0) for n in range(3)] + [
        answer(3, finish="abort", new_tokens=0)
    ]
    found = answer_figures(answers, seconds=5.0)
    assert (found["prompts"], found["prompt_tokens"], found["new_tokens"], found["aborted"]) == (4, 40, 15, 1)
    assert found["tokens_per_s"] == 3.0 and found["total_tokens_per_s"] == 11.0
    assert found["latency_s"] == pytest.approx({"mean": 2.0, "p50": 2.0, "p90": 2.8, "p99": 2.98})
    assert found["cached_tokens"] == 16 and found["cache_hit_rate"] == pytest.approx(16 / 30)
    untold = answer_figures([answer(0, first_token_s=None)], seconds=0.0)
    assert untold["cache_hit_rate"] is untold["first_token_s"] is untold["tokens_per_s"] is None


def test_rates_count_what_the_engine_computed_in_the_time_it_says():
    before, after = {"prefill_s": 1.0, "decode_s": 1.0}, {"prefill_s": 3.0, "decode_s": 5.0}
    rates = engine_rates([answer(0), answer(1, cached_tokens=4)], before, after)
    assert rates == {"prefill_tokens_per_s": 8.0, "decode_tokens_per_s": 2.0}
    assert set(engine_rates([answer(0)], {}, {"gen_throughput": 3.0}).values()) == {None}


def test_planned_kv_tokens_stand_beside_those_of_the_engine():
    assert kv_tokens(1000, 1010) == {"planned": 1000, "engine": 1010, "error": pytest.approx(0.01)}
    assert kv_tokens(None, None) is None and kv_tokens(None, 7)["error"] is None


def test_comparisons_tell_where_answers_first_differ():
    found = compared([(1, 2, 3), (1, 2), (5,), (1, 9, 3)], [(1, 2, 3), (1, 2, 3), (5,), (1, 2, 3)])
    assert (found["prompts"], found["equal"], found["share"]) == (4, 2, 0.5)
    assert found["differences"] == [
        {"index": 1, "token": 2, "engine": None, "transformers": 3, "of": 3},
        {"index": 3, "token": 1, "engine": 9, "transformers": 2, "of": 3},
    ]


def test_a_model_out_of_a_run_folder_is_a_trained_one(tmp_path):
    run, elsewhere = RunPaths(tmp_path / "run"), tmp_path / "model"
    for folder in (run.merged, elsewhere):
        folder.mkdir(parents=True)
    run.job.write_text("{}", encoding="utf-8")
    plain = SimpleNamespace(resolved=SimpleNamespace(adapter_folder=None))
    assert is_trained(plain, str(run.merged))
    assert not is_trained(plain, str(elsewhere))
    assert not is_trained(plain, "someone/model")
    adapted = SimpleNamespace(resolved=SimpleNamespace(adapter_folder=run.adapter))
    assert is_trained(adapted, str(elsewhere))
