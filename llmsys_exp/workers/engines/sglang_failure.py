"""Why SGLang did not start, or ended: one message from its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.errors import EXIT_JOB_FAILED, EXIT_USER
from llmsys_exp.workers.engines.base import EngineError
from llmsys_exp.workers.engines.sglang_causes import (
    CAUSES,
    CONFIG,
    GPU,
    KILLED,
    MISSING,
    OTHER,
    PORT,
    TIMEOUT,
    Cause,
)

HARMLESS = re.compile(r"Ignore import error|UserWarning|FutureWarning|DeprecationWarning")
"""Lines that every start prints."""
OWN_END = re.compile(r"SIGQUIT received|Received sigquit|hit an exception")
"""SGLang's words when it ends its own processes because one of them failed."""
_USERS = (CONFIG, MISSING, GPU, PORT)
"""Kinds that end with the code of a user's mistake."""


def explain(
    printed: str,
    settings: Mapping[str, Any],
    *,
    what: str,
    log: Path,
    returncode: int | None = None,
    said: str = "",
) -> EngineError:
    """Return one error for the end of SGLang.

    Args:
        printed: What it has printed.
        settings: With what it was started; fills the advice.
        what: What was going on, as a sentence, where no cause is known.
        log: Where more is to be read.
        returncode: Exit status of its process; negative for a signal.
        said: The exception that the engine raised in its host, if any.
    """
    text = "\n".join(one for one in (*printed.splitlines(), said) if not HARMLESS.search(one))
    for cause in CAUSES:
        found = re.search(cause.pattern, text)
        if found:
            values = {**_Unknown(settings), **_Unknown(found.groupdict())}
            return _error(cause, _Unknown(values))
    if returncode is not None and returncode < 0 and not said and not OWN_END.search(text):
        return _killed(returncode, what)
    error = EngineError(what, where=str(log), why=_last_error(text) or said, do="Read the end of the log")
    return _as(error, OTHER)


def took_too_long(settings: Mapping[str, Any], *, seconds: float, log: Path) -> EngineError:
    """Return the error of a start that was given up."""
    error = EngineError(
        f"SGLang did not start within {seconds:g} s",
        where=str(log),
        why="The first start on a machine compiles kernels, and large weights load slowly",
        do="Raise inference.sglang.start_timeout_s, or read where the log stands still",
    )
    return _as(error, TIMEOUT)


class _Unknown(dict[str, Any]):
    """Values for a message; what is not known is said so."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__({name: value for name, value in known.items() if value is not None})

    def __missing__(self, name: str) -> str:
        return "its value" if name in ("least", "mem_fraction_static") else "unknown"


def _error(cause: Cause, values: _Unknown) -> EngineError:
    texts = [one.format_map(values) for one in (cause.what, cause.why, cause.do)]
    return _as(EngineError(texts[0], where="SGLang", why=texts[1], do=texts[2]), cause.kind)


def _killed(returncode: int, what: str) -> EngineError:
    name = signal.Signals(-returncode).name
    error = EngineError(
        what,
        why=f"Its process was ended by {name} from outside",
        do="Often the machine ran out of main memory; answers that were there are kept, start again to go on",
    )
    return _as(error, KILLED)


def _last_error(text: str) -> str:
    """Return the last line that names an exception."""
    lines = re.findall(r"^(?:\[[^\]]*\] )?((?:\w+\.)*\w*(?:Error|Exception): .{1,240})", text, re.MULTILINE)
    return lines[-1] if lines else ""


def _as(error: EngineError, kind: str) -> EngineError:
    error.kind = kind
    error.exit_code = EXIT_USER if kind in _USERS else EXIT_JOB_FAILED
    return error
