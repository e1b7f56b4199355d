"""The transformers engine around `generate`: batches that run out of memory, times, and a fall-back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llmsys_exp.config.plain import from_plain
from llmsys_exp.workers.engines import transformers_engine as engines
from llmsys_exp.workers.engines.base import Request
from llmsys_exp.workers.generation import Own, Sampling, _seeded_picks
from llmsys_exp.workers.inference.slot import EngineSlot, in_calls

SAMPLING = Sampling(max_new_tokens=3)


def requests(count, **more):
    return [Request(index, (1,) * (index + 1), "a", 7 + index, **more) for index in range(count)]


@pytest.fixture
def engine(monkeypatch):
    """An engine whose model answers each prompt with its own length, five prompts at a time at most."""
    made = engines.TransformersEngine(job=None)
    made.calls = []

    def generate(model, tokenizer, prompts, *, sampling, own, streamer):
        made.calls.append(len(prompts))
        if len(prompts) > made.fits:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        for _ in range(1 + sampling.max_new_tokens):
            streamer.put(None)
        return [
            [len(one)] * min(mine.max_new_tokens, len(one)) for one, mine in zip(prompts, own, strict=True)
        ]

    made.fits = 5
    monkeypatch.setattr(engines, "generate_batch", generate)
    return made


def test_a_batch_out_of_memory_is_split_in_two_and_later_ones_are_smaller(engine, capsys):
    answers = list(engine.generate(requests(16), SAMPLING))
    assert engine.calls == [16, 8, 4, 4, 4, 4]
    assert [one.index for one in answers] == list(range(16))
    assert [one.ids[0] for one in answers] == list(range(1, 17))
    assert "16 prompts at once ran out of memory: 8 at a time from here on" in capsys.readouterr().out
    assert engine.counters()["split_batches"] == 2 and engine.counters()["batches"] == 4
    engine.calls.clear()
    assert len(list(engine.generate(requests(6), SAMPLING))) == 6
    assert engine.calls == [4, 2]
    engine.forget()
    engine.calls.clear()
    engine.fits = 6  # the next point of a sweep may need less
    assert len(list(engine.generate(requests(6), SAMPLING))) == 6
    assert engine.calls == [6] and "split_batches" not in engine.counters()


def test_a_single_prompt_out_of_memory_is_an_error(engine):
    engine.fits = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        list(engine.generate(requests(3), SAMPLING))
    assert engine.calls == [3, 2, 1]


def test_answers_say_how_they_ended_and_when(engine):
    first, *_, last = engine.generate(requests(4), SAMPLING)
    assert (first.finish, first.new_tokens, first.prompt_tokens, first.ids) == ("stop", 1, 1, (1,))
    assert (last.finish, last.new_tokens) == ("length", 3)
    assert 0 < first.first_token_s <= first.latency_s <= last.latency_s
    own = list(engine.generate(requests(4, max_new_tokens=2), SAMPLING))
    assert [one.finish for one in own] == ["stop", "length", "length", "length"]


def test_what_continuous_batching_leaves_is_answered_in_padded_batches(engine, capsys):
    def answer(some, sampling):
        yield from engine._padded(some[:2], sampling, 0.0)
        raise RuntimeError("no kernel image")

    engine._continuous = SimpleNamespace(answer=answer, stop=lambda: None, counters={})
    engine.fits = 40
    found = list(engine.generate(requests(40), SAMPLING))
    assert sorted(one.index for one in found) == list(range(40))
    assert engine.calls == [2, 32, 6]
    assert "does not work here (RuntimeError: no kernel image)" in capsys.readouterr().out
    engine.forget()
    engine.calls.clear()
    list(engine.generate(requests(40), SAMPLING))
    assert engine.calls == [32, 8]
    engine.calls.clear()
    list(engine.generate(requests(3), SAMPLING))
    assert engine.calls == [3]


def test_the_prefixes_of_continuous_batching_are_forgotten_with_its_cache(engine):
    stopped = []
    engine._continuous = SimpleNamespace(stop=lambda: stopped.append(True), counters={})
    engine.forget()
    assert stopped == [True] and engine._continuous is not None


def test_drawn_tokens_follow_the_distribution_and_each_its_own_seed():
    import torch

    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -50.0]])
    sampling = Sampling(1, temperature=0.7, top_p=0.99, top_k=3)
    own = [Own(seed, 1) for seed in range(4000)]
    scores = logits.repeat(len(own), 1)
    drawn = _seeded_picks(sampling, own, scores.device)(None, scores).argmax(-1)
    expected = torch.softmax(logits[0, :3] / 0.7, -1)
    assert (drawn.bincount(minlength=5)[:3] / len(own)).tolist() == pytest.approx(expected.tolist(), abs=0.02)
    assert drawn.max() == 2
    few = _seeded_picks(sampling, own[7:9], scores.device)(None, scores[:2]).argmax(-1)
    assert few.tolist() == drawn[7:9].tolist()


def test_one_call_gets_as_many_prompts_as_asked_or_all():
    asked = requests(5)
    assert [len(one) for one in in_calls(asked, 2)] == [2, 2, 1]
    assert in_calls(asked, "all") == [asked] and in_calls([], "all") == []


class Fake:
    """An engine that notes what is done to it."""

    def __init__(self, log, *, starts=True, warm_up_s=None):
        self.log, self.starts, self.warm_up_s = log, starts, warm_up_s

    def start(self, source, tokenizer):
        self.log.append("start")
        if not self.starts:
            raise RuntimeError("no")
        return SimpleNamespace(settings={"warm_up_s": self.warm_up_s})

    def generate(self, some, sampling):
        self.log.append([(one.ids, one.limit(sampling)) for one in some])
        return iter(())

    def forget(self):
        self.log.append("forget")

    def stop(self):
        self.log.append("stop")


def job(key, folder="a", batch_size=4):
    config = from_plain({"inference": {"batch_size": batch_size}})
    return SimpleNamespace(engine_key=key, config=config, paths=SimpleNamespace(folder=folder))


@pytest.fixture
def take(monkeypatch):
    """Ask a slot for the engine of a job, and return what was done to engines."""
    slot, log = EngineSlot(), []

    def ask(one, **how):
        monkeypatch.setattr("llmsys_exp.workers.inference.slot.make_engine", lambda _: Fake(log, **how))
        found = slot.take(one, "m", None, first=requests(12)[-1], sampling=SAMPLING)
        done = list(log)
        log.clear()
        return done, found

    ask.slot, ask.log = slot, log
    return ask


WARM_UP = [((1,) * 8, 2)]


@pytest.mark.parametrize(
    ("other", "stays"),
    [(job("k", "b"), True), (job("k2"), False), (job("k", batch_size="all"), False)],
    ids=["same-key", "other-key", "all-at-once"],
)
def test_an_engine_is_kept_while_its_start_would_be_the_same(take, other, stays):
    assert take(job("k"))[0] == ["start", WARM_UP]
    done, found = take(other)
    assert done == (["forget", WARM_UP] if stays else ["stop", "start", WARM_UP])
    assert (found.load_s == 0) == stays


def test_runs_without_a_key_share_no_engine(take):
    take(job(""))
    assert take(job(""))[0] == ["forget", WARM_UP]
    assert take(job("", "b"))[0] == ["stop", "start", WARM_UP]


def test_an_engine_that_does_not_start_is_stopped_and_forgotten(take):
    with pytest.raises(RuntimeError):
        take(job("k"), starts=False)
    assert take.log == ["start", "stop"]
    take.log.clear()
    assert take(job("k"))[0] == ["start", WARM_UP]
    take.slot.close()
    take.slot.close()
    assert take.log == ["stop"]


def test_an_engine_that_warms_itself_up_is_not_warmed_up_again(take):
    done, found = take(job("k"), warm_up_s=1.5)
    assert done == ["start"] and found.warm_up_s >= 1.5 and found.load_s < found.warm_up_s
    done, found = take(job("k"))
    assert done == ["forget"] and found.warm_up_s == 0
