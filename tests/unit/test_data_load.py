"""From settings to examples: the split, the cache, the fingerprint."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_text import CHAT, END, byte_tokenizer, learnt_texts

from llmsys_exp.config.plain import from_plain
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers.data.cache import Tokenised, cached
from llmsys_exp.workers.data.example import Examples
from llmsys_exp.workers.data.fingerprint import hash_sources, hash_tokenizer
from llmsys_exp.workers.data.load import load_examples
from llmsys_exp.workers.data.records import DataError
from llmsys_exp.workers.job import Job, Resolved

ROWS = [{"instruction": f"question {n}", "output": f"answer {n}"} for n in range(20)]


def make_job(folder: Path, rows=ROWS, heldout=None, **data) -> Job:
    file = folder / "rows.json"
    file.write_text(json.dumps(rows))
    plain = {"data": {"score": "exact_match", **data}, "paths": {"cache": str(folder / "cache")}}
    config = from_plain(plain)
    resolved = {"train_file": str(file), "heldout_file": heldout and str(heldout)}
    return Job(config, {}, Resolved.from_dict(resolved), RunPaths(folder))


def answers(tokenizer, examples) -> list[str]:
    return [text.removesuffix(END) for one in examples for text in learnt_texts(tokenizer, one)]


def cache_files(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("*.safetensors"))


def test_rows_are_set_aside_apart_and_the_same_each_time(tmp_path):
    tokenizer = byte_tokenizer()
    loaded = load_examples(make_job(tmp_path, heldout_split=0.25), tokenizer)
    train, heldout = answers(tokenizer, loaded.train), answers(tokenizer, loaded.heldout)
    assert len(heldout) == 5 and sorted(train + heldout) == sorted(row["output"] for row in ROWS)
    assert [one.row.output for one in loaded.heldout] == heldout
    again = load_examples(make_job(tmp_path, heldout_split=0.25, cache=False), tokenizer)
    assert answers(tokenizer, again.heldout) == heldout
    few = load_examples(make_job(tmp_path, heldout_split=0.25, limit=3, heldout_limit=2), tokenizer)
    assert answers(tokenizer, few.train) == train[:3] and answers(tokenizer, few.heldout) == heldout[:2]
    job = make_job(tmp_path, heldout_split=0.25)
    job.config.seed += 1
    assert answers(tokenizer, load_examples(job, tokenizer).heldout) != heldout


def test_a_held_out_file_goes_with_all_training_rows(tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps(row) for row in ROWS[:4]))
    loaded = load_examples(make_job(tmp_path, heldout=other, heldout_limit=3), byte_tokenizer())
    assert (len(loaded.train), len(loaded.heldout)) == (20, 3)
    job = make_job(tmp_path, heldout=other)
    job.config.training.evaluate = False
    assert len(load_examples(job, byte_tokenizer()).heldout) == 0


def test_the_cache_is_used_until_anything_that_counts_changes(tmp_path):
    def key(tokenizer=None, **data) -> str:
        loaded = load_examples(make_job(tmp_path, **data), tokenizer or byte_tokenizer())
        return loaded.fingerprint["train"]["key"]

    first = key()
    assert key() == first and len(cache_files(tmp_path)) == 1
    before = cache_files(tmp_path)[0].stat().st_mtime_ns
    assert key(format="auto") == first and cache_files(tmp_path)[0].stat().st_mtime_ns == before
    changes = [
        {"max_length": 64},
        {"limit": 4},
        {"system": "be brief"},
        {"train_on_prompt": True},
        {"template": "alpaca"},
        {"rows": ROWS[:9]},
        {"tokenizer": byte_tokenizer(extra=("<more>",))},
        {"tokenizer": byte_tokenizer(CHAT + " ")},
    ]
    keys = {first, *(key(**one) for one in changes)}
    assert len(keys) == len(cache_files(tmp_path)) == 1 + len(changes)
    key(cache=False, max_length=65)
    assert len(cache_files(tmp_path)) == 1 + len(changes)


@pytest.mark.parametrize("packing", [False, True])
def test_what_comes_from_the_cache_is_what_was_put_in(tmp_path, packing):
    job = make_job(tmp_path, heldout_split=0.2, packing=packing, max_length=100)
    made, read = load_examples(job, byte_tokenizer()), load_examples(job, byte_tokenizer())
    for part in ("train", "heldout"):
        pairs = list(zip(getattr(made, part), getattr(read, part), strict=True))
        assert all(
            (one.ids == other.ids).all() and (one.learnt == other.learnt).all() for one, other in pairs
        )
        assert all(one.row == other.row and one.lengths == other.lengths for one, other in pairs)
    assert made.fingerprint == read.fingerprint and made.notes == read.notes
    assert bool(made.notes) == packing == (len(made.train) < 16)


@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_broken_cache_file_is_made_anew(tmp_path, damage):
    job = make_job(tmp_path)
    made = load_examples(job, byte_tokenizer())
    (file,) = cache_files(tmp_path)
    data = bytearray(file.read_bytes())
    data[-20] ^= damage == "flipped"
    file.write_bytes({"cut": bytes(data[:200]), "flipped": bytes(data), "other": b"hello"}[damage])
    again = load_examples(job, byte_tokenizer())
    assert "broken and made anew" in again.notes[0]
    assert (again.train[3].ids == made.train[3].ids).all()
    assert not load_examples(job, byte_tokenizer()).notes


def test_nothing_half_written_stays_and_a_disk_that_refuses_costs_the_cache_only(tmp_path, monkeypatch):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    loaded = load_examples(make_job(tmp_path), byte_tokenizer())
    assert len(loaded.train) == 20 and "No space left" in loaded.notes[0]
    assert not cache_files(tmp_path) and not list((tmp_path / "cache").rglob("*.tmp"))


def test_of_two_that_come_at_once_one_does_the_work(tmp_path):
    made: list[int] = []

    def make() -> Tokenised:
        made.append(1)
        time.sleep(0.2)
        return Tokenised(Examples.joined([(np.arange(4), np.arange(4) > 1)]), {"notes": []})

    found: list[Tokenised] = []
    work = [
        threading.Thread(target=lambda: found.append(cached(tmp_path / "a.safetensors", make)[0]))
        for _ in "ab"
    ]
    for one in work:
        one.start()
    for one in work:
        one.join()
    assert len(made) == 1
    assert [one.examples[0].ids.tolist() for one in found] == [[0, 1, 2, 3]] * 2


def test_the_fingerprint_names_data_template_tokenizer_and_counts(tmp_path):
    rows = [*ROWS, {"instruction": "long", "output": "w" * 90}]
    loaded = load_examples(make_job(tmp_path, rows=rows, max_length=60), byte_tokenizer())
    found = json.loads(json.dumps(loaded.fingerprint))
    assert (
        found["train"]["rows"] == 21 and found["train"]["examples"] == 20 and found["train"]["left_out"] == 1
    )
    assert found["train"]["format"] == "alpaca" and found["template"] == "tokenizer"
    assert found["train"]["sha256"] == hash_sources([tmp_path / "rows.json"])
    assert found["tokenizer_sha256"] == hash_tokenizer(byte_tokenizer(pad_token=END))
    assert found["tokenizer_sha256"] != hash_tokenizer(byte_tokenizer(extra=("<more>",)))
    assert found["tokens"] == sum(len(one.ids) for one in loaded.train)
    assert loaded.notes == ["1 rows were left out: their answers alone fill 60 tokens."]


def test_a_folder_is_known_by_names_and_content(tmp_path):
    (tmp_path / "a").write_text("1")
    first = hash_sources([tmp_path])
    (tmp_path / "a").rename(tmp_path / "b")
    second = hash_sources([tmp_path])
    (tmp_path / ".lock").write_text("x")
    assert first != second == hash_sources([tmp_path])


def test_preference_pairs_teach_the_chosen_answer_and_say_so(tmp_path):
    rows = [{"instruction": "q", "chosen": "good", "rejected": "bad"}]
    tokenizer = byte_tokenizer()
    loaded = load_examples(make_job(tmp_path, rows=rows), tokenizer)
    assert answers(tokenizer, loaded.train) == ["good"] and "the chosen answer is learnt" in loaded.notes[0]


def test_plain_text_has_no_task_score(tmp_path):
    rows = [{"text": "abc"}, {"text": "def"}]
    with pytest.raises(DataError, match=r"no answers to score.*score=none"):
        load_examples(make_job(tmp_path, rows=rows, heldout_split=0.5), byte_tokenizer())
    loaded = load_examples(make_job(tmp_path, rows=rows, heldout_split=0.5, score="none"), byte_tokenizer())
    assert len(loaded.train) == len(loaded.heldout) == 1


def test_one_row_cannot_be_on_both_sides(tmp_path):
    with pytest.raises(DataError, match="cannot be learnt and held out"):
        load_examples(make_job(tmp_path, rows=ROWS[:1], heldout_split=0.5), byte_tokenizer())


def test_a_row_of_another_shape_than_the_first_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no 'instruction'.*rows\.json, row 2"):
        load_examples(make_job(tmp_path, rows=[ROWS[0], {"messages": []}]), byte_tokenizer())
