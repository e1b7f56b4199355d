"""What every inference engine offers. Prompts are token ids, so that all engines answer the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from llmsys_exp.errors import UserError
from llmsys_exp.workers.generation import Sampling

STOP = "stop"
LENGTH = "length"
ABORT = "abort"


class EngineError(UserError):
    """The engine did not start, or ended while it answered: nothing more can be asked of it."""

    kind = "engine"


@dataclass(frozen=True)
class Request:
    """One prompt as an engine gets it."""

    index: int
    """Place in the prompt file, from 0."""
    ids: tuple[int, ...]
    """The prompt's tokens."""
    text: str
    """The same prompt as text, for servers that take no tokens."""
    seed: int
    max_new_tokens: int | None = None
    """Of this prompt alone, from the column `max_new_tokens` of the prompt file. None: as `Sampling` says."""

    def limit(self, sampling: Sampling) -> int:
        """Return how many tokens the answer may get."""
        return sampling.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens


@dataclass(frozen=True)
class Generation:
    """One answer."""

    index: int
    """That of the request."""
    ids: tuple[int, ...] | None
    """New tokens without the one that ended the answer. None: the server tells text alone."""
    text: str | None
    """None: the worker decodes `ids`."""
    finish: str
    """`stop`: the model ended the answer; `length`: it ran into max_new_tokens; `abort`: see `error`."""
    prompt_tokens: int
    new_tokens: int
    cached_tokens: int | None
    """Prompt tokens that came from the prefix cache. None: the engine does not tell."""
    first_token_s: float | None
    """Seconds from handing the request over to its first token. None: the engine does not tell."""
    latency_s: float
    """Seconds from handing the request over to its last token."""
    retractions: int = 0
    """How often the engine threw its cache out to make room, and computed it again."""
    error: str | None = None
    """Why an answer was aborted."""


@dataclass(frozen=True)
class Started:
    """What an engine says of itself once it runs. Sizes are of one GPU."""

    name: str
    version: str
    context_tokens: int | None
    """Longest prompt and answer together."""
    kv_tokens: int | None
    """Tokens that the KV pool holds. None: there is no pool."""
    weights_gib: float | None
    graphs_gib: float | None
    settings: dict[str, Any] = field(default_factory=dict)
    """What the engine really runs with."""
    seconds: float = 0.0
    """Time that the start took."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class Engine(Protocol):
    """Holds one model and answers prompts. `make_engine` makes one; nothing is loaded before `start`."""

    def start(self, source: str, tokenizer: Any) -> Started:
        """Load the model from a folder (or hub id) and say what became of it.

        Raises:
            EngineError: when the engine does not start.
        """
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Generation]:
        """Answer all requests; yields each answer when it is ready, in any order.

        Raises:
            EngineError: when the engine ended. One request that fails is a `Generation` with `abort`.
        """
        ...

    def counters(self) -> dict[str, float]:
        """Return running totals and gauges of the engine; empty where it has none."""
        ...

    def forget(self) -> None:
        """Drop cached prefixes and totals of earlier runs, so that the next one starts as after `start`.

        A server that is not ours keeps both: others use it.
        """
        ...

    def stop(self) -> None:
        """Let go of everything and leave no process behind. May be called twice."""
        ...
