"""SGLang's offline engine: all requests handed over at once, each answer told when it is done."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.engines.base import ABORT, LENGTH, STOP, EngineError, Generation, Request, Started
from llmsys_exp.workers.engines.sglang_arguments import (
    ADAPTER,
    adapter_of,
    engine_arguments,
    environment,
    further_arguments,
    python_of,
    source_of_shape,
    warm_up,
)
from llmsys_exp.workers.engines.sglang_failure import explain, took_too_long
from llmsys_exp.workers.engines.sglang_process import Deadline, Event, HostProcess
from llmsys_exp.workers.generation import Sampling, end_token_ids
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.shape import is_shape_alone

DIED = "SGLang ended while it answered"
NOT_EMPTIED = "SGLang did not empty its prefix cache: prompts that an earlier point asked may be found there"


class SglangHost:
    """A process of SGLang for a job, from its start to its end: what engine and server have in common."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: HostProcess | None = None
        self._kept = ExitStack()
        self.arguments: dict[str, Any] = {}

    @property
    def source(self) -> str:
        """What SGLang loads from."""
        return str(self.arguments["model_path"])

    @property
    def process(self) -> HostProcess:
        """The running process."""
        if self._process is None:
            raise EngineError("SGLang does not run", do="Call start first")
        return self._process

    def launch(self, source: str, *, serve: bool, own: dict[str, Any]) -> None:
        """Start the process and tell it what to start; `own` are arguments of the caller."""
        job = self._job
        if is_shape_alone(job):
            folder = self._kept.enter_context(tempfile.TemporaryDirectory(prefix="llmsys-shape-"))
            source = source_of_shape(job, Path(folder))
        self.arguments = engine_arguments(job, source) | own
        self._process = HostProcess(python_of(job), log=job.paths.log, env=environment(job, self.arguments))
        self._process.send(
            op="start",
            serve=serve,
            arguments=self.arguments,
            further=further_arguments(job),
            warm_up=warm_up(job, self.arguments),
        )

    def expect(self, event: str, deadline: Deadline) -> Event:
        """Return the next event, which must be this one; else end the process and say why."""
        try:
            got = self.process.receive(deadline.left_s)
        except TimeoutError:
            self.stop(grace_s=0)
            seconds = self._job.config.inference.sglang.start_timeout_s
            raise took_too_long(self.arguments, seconds=seconds, log=self._job.paths.log) from None
        if got is not None and got["event"] == event:
            return got
        raise self.failed("SGLang did not start", got)

    def failed(self, what: str, got: Event | None) -> UserError:
        """End the process and return the error for what it said last (None: it just ended)."""
        process = self.process
        if got is not None and got["event"] == "refused":
            self.stop(grace_s=0)
            return UserError(got["what"], where=got["where"], why=got["why"], do=got["do"])
        returncode = process.wait(5.0)
        self.stop(grace_s=0)
        told = {**self.arguments, "python": python_of(self._job)}
        said = "" if got is None else str(got.get("error", ""))
        return explain(process.printed(), told, what=what, log=process.log, returncode=returncode, said=said)

    def stop(self, *, grace_s: float | None = None) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            self._process.stop(**({} if grace_s is None else {"grace_s": grace_s}))
        self._kept.close()


class SglangEngine:
    """`sgl.Engine` in its own interpreter."""

    def __init__(self, job: Job) -> None:
        self._job, self._host, self._tokenizer = job, SglangHost(job), None

    def start(self, source: str, tokenizer: Any) -> Started:
        """Start the engine and return what it says of itself."""
        self._tokenizer = tokenizer
        self._host.launch(source, serve=False, own={"skip_tokenizer_init": True})
        told = self._host.expect("started", Deadline(self._job.config.inference.sglang.start_timeout_s))
        return Started(
            name="sglang",
            version=told["version"],
            context_tokens=told["context_tokens"],
            kv_tokens=told["kv_tokens"],
            weights_gib=told["weights_gib"],
            graphs_gib=told["graphs_gib"],
            settings={**told["settings"], "warm_up_s": told["warm_up_s"]},
            seconds=told["seconds"],
        )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Generation]:
        """Answer all requests; yields each answer when it is done."""
        self._host.process.send(
            op="generate",
            sampling=sampling_arguments(sampling, self._tokenizer),
            adapter=ADAPTER if adapter_of(self._job) else None,
            # other kernels than the deterministic ones take no notice of a request's seed
            seeded=bool(further_arguments(self._job).get("enable_deterministic_inference")),
            requests=[(one.index, one.ids, one.limit(sampling), one.seed) for one in requests],
        )
        while True:
            got = self._host.process.receive()
            if got is None or got["event"] not in ("answer", "done"):
                raise self._host.failed(DIED, got)
            if got["event"] == "done":
                return
            yield generation(got)

    def counters(self) -> dict[str, float]:
        """Return running totals of the engine and its last gauges."""
        self._host.process.send(op="counters")
        got = self._host.process.receive()
        if got is None or got["event"] != "counters":
            raise self._host.failed(DIED, got)
        return got["counters"]

    def forget(self) -> None:
        """Empty the prefix cache and begin to count anew."""
        self._host.process.send(op="forget")
        got = self._host.process.receive()
        if got is None or got["event"] != "forgotten":
            raise self._host.failed(DIED, got)
        if not got.get("flushed", True):
            events.note(NOT_EMPTIED)

    def stop(self) -> None:
        """End SGLang and every process of it."""
        self._host.stop()


def sampling_arguments(sampling: Sampling, tokenizer: Any) -> dict[str, Any]:
    """Return the sampling in SGLang's words; what is left open there is spelt out."""
    ends = () if sampling.ignore_eos else sampling.end_ids or end_token_ids(None, tokenizer)
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "ignore_eos": sampling.ignore_eos,
        **({"stop_token_ids": list(ends)} if ends else {}),
    }


def generation(told: Event) -> Generation:
    """Return an answer from what the host says of it."""
    if "ids" not in told:
        return Generation(
            index=told["index"],
            ids=(),
            text=None,
            finish=ABORT,
            prompt_tokens=told["prompt_tokens"],
            new_tokens=0,
            cached_tokens=None,
            first_token_s=None,
            latency_s=told["latency_s"],
            error=told["error"],
        )
    ids = without_end(told["ids"], told)
    finish = told["finish"] if told["finish"] in (STOP, LENGTH) else ABORT
    return Generation(
        index=told["index"],
        ids=tuple(ids),
        text=None,
        finish=finish,
        prompt_tokens=told["prompt_tokens"],
        new_tokens=len(ids),
        cached_tokens=told["cached_tokens"],
        first_token_s=told["first_token_s"],
        latency_s=told["latency_s"],
        retractions=told["retractions"],
        error=(told["error"] or told["finish"]) if finish == ABORT else None,
    )


def without_end(ids: list[int], told: Event) -> list[int]:
    """Return the new tokens without the one that ended the answer."""
    ended = told["finish"] == STOP and ids and told["matched"] == ids[-1]
    return ids[:-1] if ended else ids
