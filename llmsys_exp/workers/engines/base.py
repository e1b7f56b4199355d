"""What every inference engine offers. Prompts are token ids, so that all engines answer the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llmsys_exp.workers.generation import Sampling


@dataclass(frozen=True)
class Generation:
    """One answer."""

    text: str
    new_tokens: int
    finish: str
    """`stop` when the model ended the answer, `length` when it ran into max_new_tokens."""


class Engine(Protocol):
    """Loads one model and answers batches of prompts."""

    @property
    def context_tokens(self) -> int | None:
        """Longest prompt and answer together; known after `load`."""
        ...

    def load(self, folder: Path | str, tokenizer: Any) -> None:
        """Load the model."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int
    ) -> list[Generation]:
        """Answer all prompts, in order."""
        ...
