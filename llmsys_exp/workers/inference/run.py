"""One run folder's prompts, from its file to its results: read, checked, ordered, answered, measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from llmsys_exp.config.schema import PromptOrder
from llmsys_exp.runs.lock import locked
from llmsys_exp.workers import events
from llmsys_exp.workers.engines import check_engine
from llmsys_exp.workers.engines.base import ABORT, Engine, EngineError, Generation, Request
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.inference.answers import Answer, Journal, write_sample
from llmsys_exp.workers.inference.asked import Asked, ask, journal_key
from llmsys_exp.workers.inference.compare import compare
from llmsys_exp.workers.inference.figures import answer_figures, engine_rates, kv_tokens
from llmsys_exp.workers.inference.order import Ordered, order_prompts
from llmsys_exp.workers.inference.prompts import check_lengths
from llmsys_exp.workers.inference.slot import EngineSlot, Running, in_calls
from llmsys_exp.workers.inference.source import is_trained
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.scores import NO_SCORE, check_score, mean_score

PROGRESS_S = 0.5
"""Least time between two lines of progress."""


def answer_job(job: Job, slot: EngineSlot) -> None:
    """Answer the prompts of a run folder that have no answer yet, and write its results.

    Raises:
        UserError: for anything the user can mend; answers that were finished are kept.
    """
    check_engine(job)
    check_score(job.config.data.score)
    with locked(job.paths.worker_lock):
        asked = ask(job)
        journal = Journal(job.paths, journal_key(job, asked))
        job.paths.result("infer").unlink(missing_ok=True)
        _tell_resumed(journal, len(asked.requests))
        ordered = _order(job, asked)
        left = [asked.requests[at] for at in ordered.indices if at not in journal.answers]
        with journal:
            done = _Answering(job, asked, journal, slot).run(left)
        events.phase("write results")
        answers = journal.in_file_order()
        write_sample(job.paths.outputs, answers, every=job.config.inference.save_every)
        figures = {
            **_described(job, asked, ordered),
            **answer_figures(answers, seconds=done["time_s"]["generate"]),
            **done,
            "resumed": journal.resumed,
            **_score(job, asked, answers),
        }
        if job.config.inference.compare:
            figures["compare"] = compare(job, asked, slot)
        write_json(job.paths.result("infer"), figures)


def _tell_resumed(journal: Journal, count: int) -> None:
    if journal.resumed:
        events.note(f"{journal.resumed} of {count} prompts have an answer already and are not asked again")


def _order(job: Job, asked: Asked) -> Ordered:
    settings = job.config.inference
    ordered = order_prompts(
        PromptOrder(settings.order),
        [one.ids for one in asked.requests],
        limits=[one.limit(asked.sampling) for one in asked.requests],
        engine=settings.engine,
        batch_size=settled(settings.batch_size, "inference.batch_size"),
    )
    if settings.order is PromptOrder.auto:
        events.note(f"Prompts go to the engine in the order {ordered.name!r}: {ordered.reason}")
    return ordered


class _Answering:
    """Asks an engine and keeps what it says."""

    def __init__(self, job: Job, asked: Asked, journal: Journal, slot: EngineSlot) -> None:
        self._job, self._asked, self._journal, self._slot = job, asked, journal, slot
        self._shown = 0.0
        self._batches = 0

    def run(self, left: Sequence[Request]) -> dict[str, Any]:
        """Answer what is left; return the figures that the engine's start and work came to."""
        if not left:
            return _figures_of_start(self._job, None, {"generate": self._journal.seconds}, {})
        asked = self._asked
        running = self._slot.take(
            self._job, asked.source, asked.tokenizer, first=left[0], sampling=asked.sampling
        )
        check_lengths(
            asked.prompts,
            max_new_tokens=asked.sampling.max_new_tokens,
            context_tokens=running.started.context_tokens,
        )
        events.phase("answer prompts")
        before = running.engine.counters()
        seconds = self._answer(running.engine, left)
        after = running.engine.counters()
        mine = [self._journal.answers[one.index] for one in left if one.index in self._journal.answers]
        times = {"load": running.load_s, "warm_up": running.warm_up_s, "generate": seconds}
        rates = engine_rates(mine, before, after)
        return {
            **_figures_of_start(self._job, running, times, after),
            **rates,
            "batches": self._batches,
        }

    def _answer(self, engine: Engine, left: Sequence[Request]) -> float:
        """Ask call by call; return the seconds of this and all earlier starts."""
        began = time.monotonic() - self._journal.seconds
        self._shown = time.monotonic()
        calls = in_calls(left, self._job.config.inference.batch_size)
        self._batches = len(calls)
        for call in calls:
            missing = {one.index for one in call}
            for one in engine.generate(call, self._asked.sampling):
                missing.discard(one.index)
                self._journal.add(self._record(one, time.monotonic() - began))
                self._show(time.monotonic() - began)
            if missing:
                raise EngineError(
                    f"The engine left {len(missing)} prompts without an answer", where="log.txt"
                )
            self._show(time.monotonic() - began, now=True)
        return time.monotonic() - began

    def _record(self, answer: Generation, done_s: float) -> Answer:
        tokenizer, question = self._asked.tokenizer, self._asked.prompts[answer.index].question
        text = answer.text
        if text is None:
            text = tokenizer.decode(list(answer.ids or ()), skip_special_tokens=True)
        return {
            "index": answer.index,
            "id": question.name,
            "instruction": question.instruction,
            "input": question.input,
            "output": text.strip(),
            "prompt_tokens": answer.prompt_tokens,
            "new_tokens": answer.new_tokens,
            "cached_tokens": answer.cached_tokens,
            "finish": answer.finish,
            "first_token_s": answer.first_token_s,
            "latency_s": answer.latency_s,
            "retractions": answer.retractions,
            "error": answer.error,
            "done_s": done_s,
        }

    def _show(self, seconds: float, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._shown < PROGRESS_S:
            return
        self._shown = time.monotonic()
        answers = self._journal.answers
        tokens_per_s = sum(one["new_tokens"] for one in answers.values()) / max(seconds, 1e-9)
        events.progress(
            "infer", len(answers), len(self._asked.prompts), unit="prompt", tokens_per_s=tokens_per_s
        )


def _figures_of_start(
    job: Job, running: Running | None, times: Mapping[str, float], counters: Mapping[str, float]
) -> dict[str, Any]:
    """Return what is known of the engine; little where all had been answered before and none was started."""
    planned = ((job.serving or {}).get("forecast") or {}).get("kv_tokens")
    started = running.started if running is not None else None
    return {
        "engine_version": started.version if started is not None else None,
        "started": started.to_dict() if started is not None else None,
        "time_s": {"load": 0.0, "warm_up": 0.0, **times},
        "prefill_tokens_per_s": None,
        "decode_tokens_per_s": None,
        "batches": 0,
        "kv_tokens": kv_tokens(planned, started.kv_tokens) if started is not None else None,
        "counters": dict(counters),
    }


def _described(job: Job, asked: Asked, ordered: Ordered) -> dict[str, Any]:
    settings = job.config.inference
    return {
        "engine": settings.engine,
        "trained": is_trained(job, asked.source),
        "model_folder": asked.source,
        "order": ordered.name,
        "order_reason": ordered.reason,
        "settings": {"batch_size": settings.batch_size, **asdict(asked.sampling)},
    }


def _score(job: Job, asked: Asked, answers: Sequence[Answer]) -> dict[str, Any]:
    """Score the answers where the prompt file has references for all of them."""
    name = job.config.data.score
    references = [one.question.reference for one in asked.prompts]
    if name == NO_SCORE or not all(references) or any(one["finish"] == ABORT for one in answers):
        return {}
    score = mean_score(name, [one["output"] for one in answers], references)
    return {"score_name": name, "score": score}
