"""Continuous batching of transformers: requests join and leave a running batch over a paged cache.

Seen to work, with the answers of `generate`, on the CPU under transformers 5.19 and 5.23. Left to itself it
fills nine tenths of the free memory with cache, which on a CPU takes most of a minute, so there the cache is
sized by the work.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.engines.base import ABORT, LENGTH, STOP, Generation, Request
from llmsys_exp.workers.generation import NO_END, Sampling, ends_of, generation_config

WAIT_S = 1.0
PAGE_TOKENS = 256
"""Tokens of a block of the cache by transformers' own default, which the releases name differently."""
CPU_REQUESTS = 64
"""Requests at a time on a CPU: more only wait for the same cores."""
CPU_BATCH_TOKENS = 2048


class ContinuousBatches:
    """Answers requests with one manager, which is kept while the way of sampling stays the same."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._manager: Any = None
        self._made_for: tuple[Sampling, int] | None = None
        self._told = False

    def answer(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Generation]:
        """Yield answers as they finish.

        Raises:
            RuntimeError: where the manager ended before it had answered all.
        """
        began = time.perf_counter()
        ends = ends_of(sampling, self._model, self._tokenizer)
        manager = self._managed(requests, sampling, ends)
        waiting = {str(one.index): one for one in requests}
        for name, one in list(waiting.items()):
            taken = manager.add_request(
                list(one.ids),
                request_id=name,
                max_new_tokens=one.limit(sampling),
                record_timestamps=True,
                eos_token_id=ends or NO_END,
            )
            if taken is None:
                raise RuntimeError("a request was not taken")
        while waiting:
            output = manager.get_result(timeout=WAIT_S)
            if output is not None and output.is_finished():
                request = waiting.pop(output.request_id)
                yield _generation(request, output, {*ends}, began)
            elif output is None and not manager.is_running():
                raise RuntimeError(f"it ended with {len(waiting)} requests open")

    @property
    def counters(self) -> dict[str, float]:
        """Return the room that the cache has for tokens."""
        processor = getattr(self._manager, "batch_processor", None)
        blocks = getattr(getattr(processor, "cache", None), "num_blocks", None)
        return {"kv_tokens": float(blocks * PAGE_TOKENS)} if blocks else {}

    def stop(self) -> None:
        """End the manager's thread and let go of its cache."""
        manager, self._manager, self._made_for = self._manager, None, None
        if manager is not None:
            if manager.is_running():
                manager.stop(block=True)
            manager.destroy()

    def _managed(self, requests: Sequence[Request], sampling: Sampling, ends: Sequence[int]) -> Any:
        """Return a running manager that samples as asked and has room for the requests."""
        blocks = self._blocks(requests, sampling)
        how = replace(sampling, max_new_tokens=0)
        if self._manager is not None and self._made_for is not None:
            made_how, made_blocks = self._made_for
            if made_how == how and blocks <= made_blocks and self._manager.is_running():
                return self._manager
        self._tell_of_seeds(sampling)
        self.stop()
        self._manager = self._model.init_continuous_batching(
            generation_config=generation_config(sampling, pad=self._tokenizer.pad_token_id, ends=ends),
            continuous_batching_config=self._settings(requests[0].seed, blocks),
        )
        self._made_for = (how, blocks)
        if self._model.device.type == "cuda":
            self._manager.warmup()
        self._manager.start()
        return self._manager

    def _tell_of_seeds(self, sampling: Sampling) -> None:
        if sampling.temperature > 0 and not self._told:
            self._told = True
            events.note(
                "Continuous batching draws all answers from one seed: which of them run together matters.  "
                "A number as inference.batch_size gives each prompt a seed of its own"
            )

    def _settings(self, seed: int, blocks: int) -> Any:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        sized = {}
        if self._model.device.type == "cpu":
            sized = {
                "num_blocks": blocks,
                "max_batch_tokens": CPU_BATCH_TOKENS,
                "max_requests_per_batch": CPU_REQUESTS,
            }
        # without the package it would be looked for on the hub
        has_flash = importlib.util.find_spec("flash_attn") is not None
        return ContinuousBatchingConfig(seed=seed, auto_switch_to_flash=has_flash, **sized)

    def _blocks(self, requests: Sequence[Request], sampling: Sampling) -> int:
        """Blocks for the longest requests that run at a time; on a GPU transformers sizes the cache."""
        if self._model.device.type != "cpu":
            return 0
        needed = sorted((len(one.ids) + one.limit(sampling) for one in requests), reverse=True)
        return sum(-(-tokens // PAGE_TOKENS) for tokens in needed[:CPU_REQUESTS]) + 1


def _generation(request: Request, output: Any, ends: set[int], began: float) -> Generation:
    made = list(output.generated_tokens)
    stopped = bool(made) and made[-1] in ends
    times = output.timestamps or []
    ids = tuple(made[:-1] if stopped else made)
    return Generation(
        index=request.index,
        ids=ids,
        text=None,
        finish=ABORT if output.error else STOP if stopped else LENGTH,
        prompt_tokens=len(request.ids),
        new_tokens=len(ids),
        cached_tokens=None,
        first_token_s=times[0] - began if times else None,
        latency_s=(times[-1] if times else time.perf_counter()) - began,
        error=output.error,
    )
