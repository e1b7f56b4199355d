"""The worker that is kept between inference runs: one start of an engine answers all that it can answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from llmsys_exp.launch.warm import WarmWorker
from llmsys_exp.report.console import Console
from llmsys_exp.report.progress import make_progress

if TYPE_CHECKING:
    from llmsys_exp.jobs.inference import InferJob

STDIN = "--stdin"


class Engines:
    """Keeps a worker while the jobs that follow one another need the same engine; a context manager.

    A job that needs another start gets another process: the memory of the first engine is then free for sure.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._worker: WarmWorker | None = None
        self._key = ""

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(
        self,
        job: InferJob,
        folder: Path,
        console: Console,
        *,
        log: Path,
        on_line: Callable[[str], None] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Have the prompts of a run folder answered; raises what `run_worker` raises."""
        worker = self._worker_for(job)
        with make_progress(console) as progress:
            worker.run(folder, log=log, on_event=progress.handle, on_line=on_line, timeout_s=timeout_s)

    def _worker_for(self, job: InferJob) -> WarmWorker:
        key = job.served.engine_key
        if self._worker is None or key != self._key:
            self._stack.close()
            self._worker = WarmWorker([*job.command, STDIN], env=job.env())
            self._stack.push(self._worker)
            self._key = key
        return self._worker
