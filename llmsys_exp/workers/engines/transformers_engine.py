"""The engine that runs on any machine: transformers' own `generate`, or its continuous batching for `all`."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.engines.base import LENGTH, STOP, Generation, Request, Started
from llmsys_exp.workers.engines.continuous import ContinuousBatches
from llmsys_exp.workers.generation import Own, Sampling, generate_batch
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.load import load_model_folder
from llmsys_exp.workers.models.tokenizer import check_vocabulary
from llmsys_exp.workers.ranks import pick_device, quieten, use_threads_of_environment
from llmsys_exp.workers.training import oom
from planner.units import gib

ALL = "all"
PIECE = 32
"""Prompts of one padded batch where continuous batching was asked for and does not work here."""


class TransformersEngine:
    """Holds one model on one device."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._model: Any = None
        self._tokenizer: Any = None
        self._continuous: ContinuousBatches | None = None
        self._most: int | None = None
        """Prompts a batch may have where continuous batching does not work."""
        self._at_most: int | None = None
        """The same, after one ran out of memory."""
        self._totals = {"prefill_s": 0.0, "decode_s": 0.0, "batches": 0.0, "split_batches": 0.0}

    def start(self, source: str, tokenizer: Any) -> Started:
        """Load the model in the run's compute type, with the adapter that is served over it."""
        import transformers

        began = time.monotonic()
        use_threads_of_environment()
        quieten()
        self._tokenizer = tokenizer
        model = _with_adapter(load_model_folder(self._job, source), self._job)
        check_vocabulary(model, tokenizer)
        self._model = model.to(pick_device(self._job.resolved.device))
        if self._job.config.inference.batch_size == ALL:
            self._continuous = ContinuousBatches(self._model, tokenizer)
        config = self._model.config.get_text_config()
        return Started(
            name="transformers",
            version=transformers.__version__,
            context_tokens=getattr(config, "max_position_embeddings", None),
            kv_tokens=None,
            weights_gib=gib(_bytes_of(self._model)),
            graphs_gib=None,
            settings={
                "device": str(self._model.device),
                "dtype": str(self._model.dtype).removeprefix("torch."),
                "attention": self._model.config._attn_implementation,
                "continuous_batching": self._continuous is not None,
            },
            seconds=time.monotonic() - began,
        )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Generation]:
        """Answer all requests: as one padded batch, or with continuous batching for `batch_size=all`."""
        handed_over = time.monotonic()
        if self._continuous is not None:
            left = {one.index: one for one in requests}
            try:
                for answer in self._continuous.answer(requests, sampling):
                    del left[answer.index]
                    yield answer
            except Exception as error:  # of a part of transformers that is young, on devices we have not seen
                self._give_up_continuous(error)
            requests = list(left.values())
        yield from self._padded(requests, sampling, handed_over)

    def counters(self) -> dict[str, float]:
        """Return seconds of prompts and of answers, and batches."""
        more = self._continuous.counters if self._continuous is not None else {}
        return {**{name: value for name, value in self._totals.items() if value}, **more}

    def forget(self) -> None:
        """Begin to count anew, with batches as large as asked for, and without cached prefixes.

        `generate` keeps none from one call to the next; continuous batching does.
        """
        self._totals = dict.fromkeys(self._totals, 0)
        self._at_most = self._most
        if self._continuous is not None:
            self._continuous.stop()

    def stop(self) -> None:
        """Drop the model and the memory that it holds."""
        if self._continuous is not None:
            self._continuous.stop()
        self._continuous = self._model = None
        _free_memory()

    def _give_up_continuous(self, error: Exception) -> None:
        """Go on with padded batches; nothing but speed is lost."""
        reason = (str(error).splitlines() or [""])[0]
        said = f"{type(error).__name__}: {reason}".rstrip(": ")
        events.note(f"Continuous batching does not work here ({said}): batches of {PIECE} instead")
        assert self._continuous is not None
        self._continuous.stop()
        self._continuous, self._most, self._at_most = None, PIECE, PIECE
        _free_memory()

    def _padded(
        self, requests: Sequence[Request], sampling: Sampling, handed_over: float
    ) -> Iterator[Generation]:
        waiting = deque([list(requests)] if requests else [])
        while waiting:
            batch = waiting.popleft()
            if self._at_most is not None and len(batch) > self._at_most:
                waiting.appendleft(batch[self._at_most :])
                batch = batch[: self._at_most]
            answers = self._batch(batch, sampling, handed_over)
            if answers is None:
                half = (len(batch) + 1) // 2
                waiting.extendleft((batch[half:], batch[:half]))
            else:
                yield from answers

    def _batch(
        self, batch: Sequence[Request], sampling: Sampling, handed_over: float
    ) -> list[Generation] | None:
        """Answer one padded batch; None where its memory ran out and half of it may do."""
        own = [Own(one.seed, one.limit(sampling)) for one in batch]
        longest = replace(sampling, max_new_tokens=max(one.max_new_tokens for one in own))
        clock = _Clock()
        try:
            found = generate_batch(
                self._model,
                self._tokenizer,
                [one.ids for one in batch],
                sampling=longest,
                own=own,
                streamer=clock,
            )
        except Exception as error:
            if oom.kind_of(error) is None or len(batch) == 1:
                raise
        else:
            self._count(clock)
            pairs = zip(batch, found, own, strict=True)
            return [_generation(one, ids, mine, clock, handed_over) for one, ids, mine in pairs]
        # outside of the handler, as the error holds the frames that hold the memory
        _free_memory()
        self._at_most = (len(batch) + 1) // 2
        self._totals["split_batches"] += 1
        events.note(f"{len(batch)} prompts at once ran out of memory: {self._at_most} at a time from here on")
        return None

    def _count(self, clock: _Clock) -> None:
        self._totals["batches"] += 1
        self._totals["prefill_s"] += clock.token_at(0) - clock.began
        self._totals["decode_s"] += clock.last - clock.token_at(0)


class _Clock:
    """A streamer of `generate` that keeps the time of each step and none of its tokens."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._steps: list[float] = []

    def put(self, value: Any) -> None:
        """Called with the prompts first, then after each step."""
        self._steps.append(time.monotonic())

    def end(self) -> None:
        """Called once all is done."""

    @property
    def last(self) -> float:
        """When the last step ended."""
        return self._steps[-1]

    def token_at(self, number: int) -> float:
        """When the new token with a number from 0 was there."""
        return self._steps[min(number + 1, len(self._steps) - 1)]


def _generation(
    request: Request, ids: Sequence[int], own: Own, clock: _Clock, handed_over: float
) -> Generation:
    is_cut = len(ids) == own.max_new_tokens
    return Generation(
        index=request.index,
        ids=tuple(ids),
        text=None,
        finish=LENGTH if is_cut else STOP,
        prompt_tokens=len(request.ids),
        new_tokens=len(ids),
        cached_tokens=None,
        first_token_s=clock.token_at(0) - handed_over,
        # the token that ends an answer is one more than those it keeps
        latency_s=clock.token_at(len(ids) - 1 if is_cut else len(ids)) - handed_over,
    )


def _with_adapter(model: Any, job: Job) -> Any:
    """Put the run's adapter into the weights of its base, so that answers cost what those of a model do."""
    folder = job.resolved.adapter_folder
    if folder is None:
        return model
    from peft import PeftModel

    from llmsys_exp.workers.export.belongs import check_adapter

    check_adapter(folder, job.resolved.model_folder)
    return PeftModel.from_pretrained(model, str(folder)).merge_and_unload().eval()


def _bytes_of(model: Any) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
