"""How much work a prompt file is: prompts, their lengths from bytes, and how long answers may get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import UserError
from llmsys_exp.workers.data.records import read_lines, read_records
from planner.units import ceil_div

TOKEN_BYTES = 4
"""Bytes of a token of English text, about; used for means."""
FEW_TOKEN_BYTES = 3
"""Of code, numbers and many other languages; used where memory grows with the longest."""
MOST_TOKEN_BYTES = 8
"""No text that somebody writes has more bytes a token: shorter than this, a prompt cannot be."""
TEMPLATE_TOKENS, MOST_TEMPLATE_TOKENS = 32, 256
"""What a chat template adds to a prompt, about and at most, beside the system prompt."""
ASSUMED_BYTES, ASSUMED_PROMPTS = 2048, 256
"""Length and number of prompts where no file is named."""
NO_TEMPLATE = "none"
NOT_ASKED = frozenset(("output", "answer", "answers", "reference", "id", "index", "dataset", "generator"))
"""Columns of a row that are no part of its prompt."""
LINES = ".txt"


@dataclass(frozen=True)
class Work:
    """Prompts of a file and their lengths in tokens, from their bytes."""

    prompts: int
    mean_tokens: int
    """At `TOKEN_BYTES` a token."""
    longest_tokens: int
    """The most the longest can have: a token stands for a byte at least."""
    long_tokens: int
    """The longest, at `FEW_TOKEN_BYTES` a token."""
    least_longest_tokens: int
    """The least the longest can have."""
    new_tokens: int
    """Longest answer asked for."""
    longest_bytes: int
    assumed: bool = False
    """There is no file: one prompt of a common length stands for it."""

    def describe(self) -> str:
        """Say where the lengths come from."""
        if self.assumed:
            what = f"{self.prompts:,} prompts of {self.longest_bytes:,} bytes"
            return f"no prompt file is named: {what} are assumed"
        mean = f"{self.mean_tokens:,} tokens on average, at {TOKEN_BYTES} bytes a token"
        return f"{self.prompts:,} {'prompt' if self.prompts == 1 else 'prompts'} of {mean}"


def measure_work(config: Config, prompts_file: str | Path | None) -> Work:
    """Count the bytes of the prompts that a job answers; read without any tokenizer.

    Raises:
        UserError: when the file cannot be read or holds no prompt.
    """
    settings = config.inference
    template = settings.template != NO_TEMPLATE
    system = len((config.data.system or "").encode()) if template else 0
    new = settings.sampling.max_new_tokens
    if prompts_file is None:
        sizes, limits = [ASSUMED_BYTES], [new]
    else:
        rows = list(_rows(Path(prompts_file).absolute(), config))
        sizes, limits = [size for size, _ in rows], [limit or new for _, limit in rows]
    if not sizes:
        raise UserError("The prompt file is empty", where=str(prompts_file), do="Give it at least one prompt")
    longest, mean = max(sizes) + system, ceil_div(sum(sizes), len(sizes)) + system
    return Work(
        prompts=len(sizes) if prompts_file is not None else _asked_at_once(config),
        mean_tokens=ceil_div(mean, TOKEN_BYTES) + template * TEMPLATE_TOKENS,
        longest_tokens=longest + template * MOST_TEMPLATE_TOKENS,
        long_tokens=ceil_div(longest, FEW_TOKEN_BYTES) + template * TEMPLATE_TOKENS,
        least_longest_tokens=max(1, longest // MOST_TOKEN_BYTES),
        new_tokens=max(limits),
        longest_bytes=longest,
        assumed=prompts_file is None,
    )


def at_once(config: Config, work: Work) -> int:
    """Prompts that the engine has in hand at a time: all of them, or a batch."""
    size = config.inference.batch_size
    return work.prompts if isinstance(size, str) else min(work.prompts, size)


def _asked_at_once(config: Config) -> int:
    """Without a file: as many prompts as the settings speak of."""
    asked = (
        config.inference.limit,
        config.inference.batch_size,
        config.inference.sglang.max_running_requests,
    )
    counts = [value for value in asked if value not in (None, AUTO) and isinstance(value, int)]
    return counts[0] if counts else ASSUMED_PROMPTS


def _rows(path: Path, config: Config) -> Iterator[tuple[int, int | None]]:
    """Bytes of each prompt, and the longest answer that its row asks for."""
    lines = path.suffix.lower() == LINES
    records: Iterator[tuple[str, Any]] = read_lines(path) if lines else read_records(path)
    columns = config.data.columns
    skipped = NOT_ASKED | {columns.get("output", "output")}
    for number, (_, value) in enumerate(records):
        if config.inference.limit is not None and number >= config.inference.limit:
            return
        yield _text_bytes(value, skipped), _own_limit(value, columns.get("max_new_tokens", "max_new_tokens"))


def _text_bytes(value: Any, skipped: frozenset[str]) -> int:
    """Bytes of all texts of a record, however they are nested: layouts of prompts differ."""
    if isinstance(value, str):
        return len(value.encode("utf-8", errors="replace"))
    if isinstance(value, Mapping):
        return sum(_text_bytes(part, skipped) for key, part in value.items() if key not in skipped)
    if isinstance(value, (list, tuple)):
        return sum(_text_bytes(part, skipped) for part in value)
    return 0


def _own_limit(value: Any, column: str) -> int | None:
    found = value.get(column) if isinstance(value, Mapping) else None
    text = str(found).strip() if found is not None and not isinstance(found, bool) else ""
    return int(text) if text.isdecimal() and int(text) else None
