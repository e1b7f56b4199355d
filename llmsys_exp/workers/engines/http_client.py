"""Many requests to an HTTP server at a time: a limit, time-outs, and further tries where they may help."""

from __future__ import annotations

import asyncio
import json
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from llmsys_exp.workers.engines.base import EngineError

AGAIN = (429, 502, 503, 504)
"""Answers of a server that is busy or not there yet."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
SHOWN_CHARACTERS = 200
LOOK_S = 10.0
"""For what a server says of itself."""


@dataclass(frozen=True)
class Reply:
    """What came of one request: data, or why there is none."""

    index: int
    data: Any
    error: str | None
    seconds: float
    """From handing all requests over to this reply."""


class Client:
    """One server."""

    def __init__(self, url: str, *, timeout_s: float, retries: int = 0, at_a_time: int = 256) -> None:
        self.url = url.rstrip("/")
        self._timeout_s, self._retries, self._at_a_time = timeout_s, retries, at_a_time

    def get(self, path: str) -> Any:
        """Return the JSON at a path; None where the server has no such path, or refuses.

        Raises:
            EngineError: when there is no server, or it says something else.
        """
        return asyncio.run(self._once("GET", path, None, LOOK_S))

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON that the server answers to one request; None where it turns the request down."""
        return asyncio.run(self._once("POST", path, body, self._timeout_s))

    def is_there(self, path: str) -> bool:
        """Return whether a path answers with success, whatever it says; never raises."""
        return asyncio.run(self._is_there(path))

    def post_all(self, path: str, bodies: Sequence[dict[str, Any]]) -> Iterator[Reply]:
        """Send all bodies and yield each reply when it is there.

        Raises:
            EngineError: when the server is gone, or its replies are no JSON.
        """
        replies: queue.Queue[Reply | BaseException | None] = queue.Queue()
        loop = asyncio.new_event_loop()
        task = loop.create_task(self._post_all(path, bodies, replies))
        thread = threading.Thread(target=_run, args=(loop, task, replies), daemon=True)
        thread.start()
        try:
            while (reply := replies.get()) is not None:
                if isinstance(reply, BaseException):
                    raise reply
                yield reply
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
            thread.join()

    def _session(self, timeout_s: float) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            connector=aiohttp.TCPConnector(limit=self._at_a_time),
        )

    async def _post_all(self, path: str, bodies: Sequence[dict[str, Any]], replies: Any) -> None:
        began = time.perf_counter()
        free = asyncio.Semaphore(self._at_a_time)  # a request that waits here has no time-out running yet
        async with self._session(self._timeout_s) as session:

            async def ask(index: int, body: dict[str, Any]) -> None:
                async with free:
                    data, error = await self._ask(session, path, body)
                replies.put(Reply(index, data, error, time.perf_counter() - began))

            tasks = [asyncio.create_task(ask(index, body)) for index, body in enumerate(bodies)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for one in tasks:
                    one.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(
        self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """Return the data, or the reason why the server gives none for this request."""
        for tried in range(self._retries + 1):
            last, wait_s = tried == self._retries, _wait_s(tried)
            try:
                async with session.post(self.url + path, json=body) as reply:
                    if reply.status not in AGAIN or last:
                        return await self._data(reply, path)
                    wait_s = _asked_wait_s(reply, wait_s)
            except asyncio.TimeoutError:
                return None, f"No answer within {self._timeout_s:g} s (inference.server.request_timeout_s)"
            except aiohttp.ClientError as error:
                if last:
                    raise self._gone(error) from error
            await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    async def _data(self, reply: aiohttp.ClientResponse, path: str) -> tuple[Any, str | None]:
        text = (await reply.read()).decode("utf-8", errors="replace")
        if reply.status == HTTPStatus.NOT_FOUND:
            raise self._no_path(path)
        if not reply.ok:
            return None, f"The server answered {reply.status}: {_said(text)}"
        return self._json(text, path), None

    async def _once(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        try:
            async with (
                self._session(timeout_s) as session,
                session.request(method, self.url + path, json=body) as reply,
            ):
                text = (await reply.read()).decode("utf-8", errors="replace")
                return self._json(text, path) if reply.ok else None
        except aiohttp.InvalidURL as error:
            raise EngineError(f"{self.url} is no URL", where="inference.server.url") from error
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise self._gone(error) from error

    async def _is_there(self, path: str) -> bool:
        try:
            async with self._session(LOOK_S) as session, session.get(self.url + path) as reply:
                return reply.ok
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    def _json(self, text: str, path: str) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise malformed(self.url, path, text) from None

    def _gone(self, error: Exception) -> EngineError:
        return EngineError(
            f"There is no answer from {self.url}",
            where="inference.server",
            why=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            do="Check that the server runs and that the URL is right; answers that came are kept",
        )

    def _no_path(self, path: str) -> EngineError:
        return EngineError(
            f"The server at {self.url} has no {path}",
            where="inference.server.api",
            do="Set inference.server.api to what the server speaks: native (SGLang) or openai",
        )


def malformed(url: str, path: str, text: str) -> EngineError:
    """Return the error for a reply that is not what the path promises."""
    shown = text[:SHOWN_CHARACTERS] + ("..." if len(text) > SHOWN_CHARACTERS else "")
    return EngineError(
        f"The server at {url} answers {path} with something else than was asked for",
        where="inference.server",
        why=f"It begins: {shown!r}",
        do="Check what runs at that URL, and inference.server.api",
    )


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], replies: Any) -> None:
    try:
        loop.run_until_complete(task)
        replies.put(None)
    except asyncio.CancelledError:
        replies.put(None)
    except BaseException as error:  # raised again where the replies are taken
        replies.put(error)
    finally:
        loop.close()


def _wait_s(tried: int) -> float:
    # spread out, so that turned-down requests do not come back all at once
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**tried) * random.uniform(0.5, 1.0)


def _asked_wait_s(reply: aiohttp.ClientResponse, otherwise: float) -> float:
    try:
        return min(LONGEST_WAIT_S, max(0.0, float(reply.headers["retry-after"])))
    except (KeyError, ValueError):
        return otherwise


def _said(text: str) -> str:
    """Return the message in an error's body, or its beginning."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        data = text
    for key in ("error", "message"):
        data = data.get(key, data) if isinstance(data, dict) else data
    return str(data)[:SHOWN_CHARACTERS]
