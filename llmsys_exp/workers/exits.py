"""How a worker process ends: with a message the user can act on, a code, and no crash on the way out."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from llmsys_exp.errors import EXIT_INTERRUPTED, EXIT_JOB_FAILED, EXIT_OK, UserError
from llmsys_exp.runs.files import cannot_write, is_full
from llmsys_exp.workers import events
from llmsys_exp.workers.training import oom

EXIT_BUG = 1
EXTRAS = {
    **dict.fromkeys(
        ("torch", "transformers", "deepspeed", "peft", "gguf", "safetensors", "accelerate"), "train"
    ),
    **dict.fromkeys(("datasets", "pyarrow", "filelock", "aiohttp"), "train"),
    "bitsandbytes": "quant",
    "gptqmodel": "gptq",
    "sglang": "sglang",
}
"""Extra of our package that brings each heavy package."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived. Not an `Exception`: no library may swallow it."""


def run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Do the work, report what went wrong, and leave the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        work()
        code = EXIT_OK
    except (Interrupted, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
        events.error(
            "interrupted", "Stopped before the end; nothing half-written was left behind.", code=code
        )
    except Exception as error:
        code = tell(error)
    _leave(code)


def tell(error: Exception) -> int:
    """Say what went wrong in an event, with a traceback in the log where it is a bug; return the code."""
    if isinstance(error, UserError):
        advised = {"advised": True} if getattr(error, "do", "") else {}
        events.error(getattr(error, "kind", "user"), str(error), code=error.exit_code, **advised)
        return error.exit_code
    if isinstance(error, ModuleNotFoundError):
        return _report_missing_package(error)
    traceback.print_exception(error)
    full = next((one for one in _chain(error) if is_full(one)), None)
    if isinstance(full, OSError):
        return tell(cannot_write(full, "the run folder"))
    return _report_failure(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it came out of: closing a file on a full disk fails again."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # a second signal must not stop the clean-up that the first one began
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise Interrupted


def _report_missing_package(error: ModuleNotFoundError) -> int:
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        traceback.print_exception(error)
        return _report_failure(error)
    missing = UserError(
        f"The package {package} is not installed",
        where=sys.executable,
        why="This step needs it",
        do=f"Run: pip install 'llmsys-exp[{EXTRAS[package]}]', or point launcher.python to where it is",
    )
    events.error("missing_package", str(missing), code=missing.exit_code)
    return missing.exit_code


def _report_failure(error: Exception) -> int:
    kind = oom.kind_of(error)
    if kind is not None:
        text, figures = oom.explain(error)
        figures.pop("kind")
        events.error(kind, text, code=EXIT_JOB_FAILED, **figures)
        return EXIT_JOB_FAILED
    first_line = (str(error).splitlines() or [""])[0]
    said = f"{type(error).__name__}: {first_line}  The traceback is in log.txt."
    events.error("bug", said, code=EXIT_BUG)
    return EXIT_BUG


def _leave(code: int) -> NoReturn:
    """End without the interpreter's shutdown.

    gloo's thread can hold the last collective's tensors; releasing them while Python shuts down aborts the
    process although all work is done.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    # after a failure the other ranks may never arrive at a barrier
    if code == EXIT_OK and distributed and distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
