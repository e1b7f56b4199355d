"""The one engine of a process: kept from run to run while nothing that its start depends on changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.engines import make_engine
from llmsys_exp.workers.engines.base import Engine, Request, Started
from llmsys_exp.workers.generation import Sampling
from llmsys_exp.workers.job import Job

ALL = "all"
WARM_UP_PROMPT_TOKENS, WARM_UP_NEW_TOKENS = 8, 2


@dataclass(frozen=True)
class Running:
    """An engine that is ready, and the time that this took in this run: none where it was there already."""

    engine: Engine
    started: Started
    load_s: float = 0.0
    warm_up_s: float = 0.0


class EngineSlot:
    """Holds no engine or one."""

    def __init__(self) -> None:
        self._running: Running | None = None
        self._key: tuple[str, bool] | None = None

    def take(self, job: Job, source: str, tokenizer: Any, *, first: Request, sampling: Sampling) -> Running:
        """Return the engine for a job: the one that runs, or another in its place.

        Args:
            job: names the engine; without an `engine_key` no other run's engine does.
            source: folder or hub id of the model.
            tokenizer: its tokenizer.
            first: a prompt, whose end the engine is warmed up with.
            sampling: how tokens will be picked.
        """
        # all prompts at once is another way to run transformers, which is chosen when it starts
        settings = job.config.inference
        is_continuous = settings.engine == "transformers" and settings.batch_size == ALL
        key = (job.engine_key or str(job.paths.folder), is_continuous)
        if self._running is not None and key == self._key:
            self._running.engine.forget()
            return replace(self._running, load_s=0.0, warm_up_s=self._warm_up_again(first, sampling))
        self.close()
        events.phase("load model" if job.config.inference.engine == "transformers" else "start engine")
        engine = make_engine(job)
        began = time.monotonic()
        try:
            started = engine.start(source, tokenizer)
            loaded = time.monotonic()
            # an engine that warms itself up says how long that took
            own_s = float(started.settings.get("warm_up_s") or 0.0)
            if not own_s:
                _warm_up(engine, first, sampling)
        except BaseException:
            engine.stop()
            raise
        self._key = key
        self._running = Running(engine, started, loaded - began - own_s, time.monotonic() - loaded + own_s)
        return self._running

    def _warm_up_again(self, first: Request, sampling: Sampling) -> float:
        """Prepare what `forget` dropped, or other sampling needs, and return the seconds that this took."""
        assert self._running is not None
        if self._running.started.settings.get("warm_up_s"):
            return 0.0  # it has warmed itself up, and keeps what came of it
        began = time.monotonic()
        _warm_up(self._running.engine, first, sampling)
        return time.monotonic() - began

    def close(self) -> None:
        """Stop the engine, if there is one."""
        running, self._running, self._key = self._running, None, None
        if running is not None:
            running.engine.stop()


def _warm_up(engine: Engine, first: Request, sampling: Sampling) -> None:
    """Have two tokens made, so that what libraries do at their first call is no part of the answers' time.

    The last tokens of a prompt do as its beginning: the prefix cache holds nothing of it afterwards.
    """
    ids = first.ids[-WARM_UP_PROMPT_TOKENS:]
    few = min(WARM_UP_NEW_TOKENS, sampling.max_new_tokens)
    request = replace(first, ids=ids, text=first.text[-WARM_UP_PROMPT_TOKENS:], max_new_tokens=few)
    for _ in engine.generate([request], replace(sampling, max_new_tokens=few)):
        pass


def in_calls(requests: Sequence[Request], size: int | str) -> list[Sequence[Request]]:
    """Cut requests into what one call to the engine gets; `all` is one call."""
    each = len(requests) if size == ALL else int(size)
    return [requests[at : at + each] for at in range(0, len(requests), max(1, each))]
