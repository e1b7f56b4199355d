"""SGLang's HTTP server, started and stopped here, or any server that already runs at a URL."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from llmsys_exp.config.schema import ServerApi
from llmsys_exp.errors import UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.engines.base import EngineError, Generation, Request, Started
from llmsys_exp.workers.engines.http_client import Client
from llmsys_exp.workers.engines.sglang_api import Api, NativeApi, OpenAiApi
from llmsys_exp.workers.engines.sglang_arguments import ADAPTER, adapter_of, further_arguments, warm_up
from llmsys_exp.workers.engines.sglang_engine import DIED, NOT_EMPTIED, SglangHost
from llmsys_exp.workers.engines.sglang_failure import took_too_long
from llmsys_exp.workers.engines.sglang_process import Deadline
from llmsys_exp.workers.generation import Sampling
from llmsys_exp.workers.job import Job

FLUSHES, FLUSH_WAIT_S = 50, 0.1
"""How often an engine is asked to empty its prefix cache, which it refuses while anything runs."""
AT_A_TIME = 256
"""Requests under way at a server whose size we do not know."""
AHEAD = 2
"""Requests under way for each that is answered at a time: the server's queue never runs dry."""
MOST_AT_A_TIME = 512
"""Connections, within what a process may open."""
POLL_S = 0.5


class SglangServerEngine:
    """Asks a server by HTTP."""

    def __init__(self, job: Job) -> None:
        self._job, self._server = job, job.config.inference.server
        self._host: SglangHost | None = None
        self._client: Client | None = None
        self._api: Api | None = None

    def start(self, source: str, tokenizer: Any) -> Started:
        """Start a server, or look at the one that runs, and return what it says of itself."""
        began = time.perf_counter()
        url = self._server.url or self._launch(source)
        self._client = self._client_of(url)
        self._api = self._api_of(self._client, tokenizer)
        if self._host is not None:
            self._wait(self._client)
            self._warm_up(tokenizer)
        names = [source, self._job.config.model.id] if self._host is None else [self._host.source]
        started = self._api.check(names)
        return replace(
            started, settings={**started.settings, "url": url}, seconds=time.perf_counter() - began
        )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Generation]:
        """Answer all requests; yields each answer when it is there."""
        client, api = self._ready()
        bodies = [api.body(one, sampling) for one in requests]
        try:
            for reply in client.post_all(api.path, bodies):
                yield api.generation(requests[reply.index], reply)
        except EngineError:
            if self._host is not None and self._host.process.wait(1.0) is not None:
                raise self._host.failed(DIED, None) from None
            raise

    def counters(self) -> dict[str, float]:
        """Return the last gauges of an SGLang server; empty for others."""
        client, _ = self._ready()
        if self._server.api is ServerApi.openai:
            return {}
        info = client.get("/server_info") or client.get("/get_server_info") or {}
        states = [one for one in info.get("internal_states") or [] if isinstance(one, dict)]
        return {"last_gen_tokens_per_s": sum(float(one.get("last_gen_throughput") or 0) for one in states)}

    def forget(self) -> None:
        """Empty the prefix cache of a server of our own."""
        if self._host is None:
            return
        client, _ = self._ready()
        for _ in range(FLUSHES):
            if client.is_there("/flush_cache"):
                return
            time.sleep(FLUSH_WAIT_S)  # its last batch is not yet put away
        events.note(NOT_EMPTIED)

    def stop(self) -> None:
        """End a server of our own; leave another one alone."""
        if self._host is not None:
            self._host.stop(grace_s=0)

    def _launch(self, source: str) -> str:
        host, port = self._server.host, self._server.port
        own = {"host": host, "port": free_port(host) if port is None else checked_port(host, port)}
        self._host = SglangHost(self._job)
        self._host.launch(source, serve=True, own=own)
        return f"http://{host}:{own['port']}"

    def _client_of(self, url: str) -> Client:
        at_a_time = AT_A_TIME
        if self._host is not None:
            answered = int(self._host.arguments.get("max_running_requests") or AT_A_TIME)
            at_a_time = min(MOST_AT_A_TIME, AHEAD * answered)
        return Client(
            url,
            timeout_s=self._server.request_timeout_s,
            retries=self._server.retries,
            at_a_time=at_a_time,
        )

    def _api_of(self, client: Client, tokenizer: Any) -> Api:
        adapter = ADAPTER if self._host is not None and adapter_of(self._job) else None
        if self._server.api is ServerApi.native:
            seeded = bool(further_arguments(self._job).get("enable_deterministic_inference"))
            return NativeApi(client, tokenizer, adapter=adapter, seeded=seeded)
        if adapter is not None:
            raise UserError(
                "An adapter is asked for by SGLang's own API alone",
                where="inference.server.api=openai",
                do="Set inference.server.api=native",
            )
        return OpenAiApi(client, tokenizer, model=self._server.model)

    def _wait(self, client: Client) -> None:
        """Wait until our server is healthy, or has ended, or the time is up."""
        host, limit_s = self._host, self._job.config.inference.sglang.start_timeout_s
        assert host is not None
        deadline = Deadline(limit_s)
        while not client.is_there("/health"):
            try:
                said = host.process.receive(POLL_S)
            except TimeoutError:
                if not deadline.left_s:
                    self.stop()
                    raise took_too_long(host.arguments, seconds=limit_s, log=host.process.log) from None
            else:
                raise host.failed("SGLang's server did not start", said)

    def _warm_up(self, tokenizer: Any) -> None:
        """Let kernels compile before anything is timed; leaves nothing in the prefix cache."""
        host, client = self._host, self._client
        assert host is not None and client is not None
        prompts, tokens, new = warm_up(self._job, host.arguments)
        sampling = Sampling(max_new_tokens=new, temperature=1.0, top_p=0.9, ignore_eos=True)
        native = NativeApi(client, tokenizer, adapter=None, seeded=False)
        rows = [tuple(1 + (7 * row + at) % 50 for at in range(tokens)) for row in range(prompts)]
        bodies = [native.body(Request(index=0, ids=ids, text="", seed=0), sampling) for ids in rows]
        for _ in client.post_all(native.path, bodies):
            pass
        client.is_there("/flush_cache")

    def _ready(self) -> tuple[Client, Api]:
        if self._client is None or self._api is None:
            raise EngineError("No server is known yet", do="Call start first")
        return self._client, self._api


def free_port(host: str) -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def checked_port(host: str, port: int) -> int:
    """Return the port, which must be free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"Port {port} of {host} cannot be used: {error.strerror}",
                where="inference.server.port",
                why="Another program listens there, or it is not ours to use",
                do="Give another number, or leave it open: a free one is taken."
                " To use the server that runs there, set inference.server.url",
            ) from None
    return port
