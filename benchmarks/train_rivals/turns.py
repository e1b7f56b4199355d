"""Counts steps, tokens and seconds at DeepSpeed's engine, and lets programs take turns on one device.

Every program is started at once and stops before its first forward pass. The parent then says `go W N` to one
of them at a time: it runs W steps that are not counted and N that are, answers with what it saw, gives its
spare memory back and waits again. So start-up is paid once, and all programs are measured in the same minutes.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

SOCKET_VARIABLE = "TRAIN_SPEED_SOCKET"
NO_BATCH = -1


class Turns:
    """One program's side of the conversation."""

    def __init__(self, pad_id: int) -> None:
        self._line = socket.socket(fileno=int(os.environ[SOCKET_VARIABLE])).makefile("rw")
        self._pad_id = pad_id
        self._engine: Any = None
        self._warm = self._timed = 0
        self._waiting = True

    def attach(self, engine: Any) -> None:
        """Watch an engine's forward, backward and step."""
        import torch

        self._torch, self._engine = torch, engine
        self._on_gpu = torch.cuda.is_available()
        engine.module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        backward, step = engine.backward, engine.step

        def counted_backward(loss: Any, *rest: Any, **more: Any) -> Any:
            self._losses.append(loss.detach())
            return backward(loss, *rest, **more)

        def counted_step(*rest: Any, **more: Any) -> Any:
            result = step(*rest, **more)
            self._after_step()
            return result

        engine.backward, engine.step = counted_backward, counted_step

    def _before_forward(self, module: Any, positional: Any, batch: dict[str, Any]) -> None:
        if self._waiting:
            self._wait()
        ids = batch["input_ids"] if "input_ids" in batch else positional[0]
        self._positions += ids.numel()
        self._tokens.append((ids != self._pad_id).sum())  # read at the end of the turn: reading waits

    def _after_step(self) -> None:
        self._done += 1
        if self._done == self._warm:
            self._begin()
        elif self._done == self._warm + self._timed:
            self._report()
            self._waiting = True

    def _wait(self) -> None:
        if self._on_gpu:
            self._torch.cuda.empty_cache()  # the others need it
        self._say({"ready": True})
        words = self._line.readline().split()
        if not words or words[0] != "go":
            os._exit(0)
        self._warm, self._timed = int(words[1]), int(words[2])
        self._done, self._waiting = 0, False
        if self._on_gpu:
            self._torch.cuda.reset_peak_memory_stats()
        self._begin()

    def _begin(self) -> None:
        self._losses: list[Any] = []
        self._tokens: list[Any] = []
        self._positions = 0
        self._synchronise()
        self._started = time.perf_counter()

    def _report(self) -> None:
        self._synchronise()
        seconds = time.perf_counter() - self._started
        peak = self._torch.cuda.max_memory_allocated() if self._on_gpu else 0
        self._say(
            {
                "seconds": seconds,
                "steps": self._timed,
                "tokens": sum(int(one) for one in self._tokens),
                "positions": self._positions,
                "losses": [float(one) for one in self._losses],
                "peak_allocated_bytes": peak,
            }
        )

    def _synchronise(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()

    def _say(self, message: dict[str, Any]) -> None:
        self._line.write(json.dumps(message) + "\n")
        self._line.flush()


def watch(pad_id: int) -> None:
    """Attach to whatever engine `deepspeed.initialize` makes in this process."""
    import deepspeed

    turns = Turns(pad_id)
    initialize = deepspeed.initialize

    def watched(*positional: Any, **named: Any) -> Any:
        result = initialize(*positional, **named)
        turns.attach(result[0])
        return result

    deepspeed.initialize = watched
