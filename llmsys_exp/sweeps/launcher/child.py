"""One job of a Hydra program as its owner sees it: started with a lease, awaited, ended."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import spawn
from tempfile import TemporaryFile
from typing import IO, Any

from hydra import version
from hydra.core.utils import JobReturn, JobRuntime, JobStatus
from hydra.errors import CompactHydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from llmsys_exp.errors import JobError
from llmsys_exp.launch.failure import OTHER, TIMEOUT
from llmsys_exp.sweeps.launcher.job import Task, Work
from llmsys_exp.sweeps.running.lease import Lease, cores
from llmsys_exp.sweeps.running.processes import end_point, tag_of
from llmsys_exp.sweeps.running.start import Child


@dataclass
class Job:
    """A job that runs.

    Attributes:
        sweep: name that it and all it starts are known by, together with its number.
        number: Hydra's.
        config: what it was started with.
        child: its process, the leader of a group.
        answer: the file that it writes what it returned to.
        owner: the descriptor whose end ends the job.
        until: when its time is over, by `time.monotonic`.
    """

    sweep: str
    number: int
    config: DictConfig
    child: Child
    answer: IO[bytes]
    owner: int
    until: float
    timed_out: bool = False

    def has_ended(self) -> bool:
        """Whether it has ended by itself; one whose time is over is ended here."""
        if self.child.process.poll() is None and time.monotonic() > self.until:
            self.timed_out = True
            self.kill()
        return self.child.process.poll() is not None

    def returned(self) -> JobReturn:
        """Return what the job returned, or in what way it died, once it has ended; close what is open."""
        self._signal(signal.SIGKILL)  # what it has started and left behind
        os.close(self.owner)
        with self.answer:
            self.answer.seek(0)
            packed = self.answer.read()
        code = self.child.process.returncode
        if code == 0 and packed:
            return pickle.loads(packed)
        end_point(self.sweep, self.number)
        kind, what = self.child.failure() or (OTHER, f"Its process ended with exit code {code}")
        if self.timed_out:
            kind, what = TIMEOUT, "It took longer than hydra.launcher.timeout_s"
        return _failed(self.config, JobError(what, kind=kind, where=f"job {self.number}"))

    def ask(self) -> None:
        """Interrupt it as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and all it has started at once."""
        self._signal(signal.SIGKILL)
        end_point(self.sweep, self.number)
        self.child.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # its group has its number, as it opened a session of its own
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.process.pid, number)


class Starter:
    """Starts jobs of one program."""

    def __init__(self, context: HydraContext, function: TaskFunction) -> None:
        """Find out how another process gets at the program.

        Raises:
            CompactHydraException: when it cannot.
        """
        self._context, self._task = context, _find(function)
        self._sweep = f"hydra-{uuid.uuid4().hex}"
        try:
            self._program = spawn.get_preparation_data("job")
        except RuntimeError as error:
            raise CompactHydraException(
                "A job imports the program, and the program launches jobs when it is imported.  "
                'Call its main function under `if __name__ == "__main__":`'
            ) from error
        del self._program["authkey"]

    def start(
        self, number: int, config: DictConfig, lease: Lease, env: Mapping[str, str], timeout_s: float | None
    ) -> Job:
        """Start a job, which holds the lease from then on.

        Raises:
            CompactHydraException: when what it needs cannot be handed to another process.
        """
        allowed = os.sched_getaffinity(0)
        watched, owner = os.pipe()
        with ExitStack() as kept, ExitStack() as done:
            answer = kept.enter_context(TemporaryFile())
            kept.callback(os.close, owner)
            done.callback(os.close, watched)
            done.callback(os.sched_setaffinity, 0, allowed)
            work = done.enter_context(TemporaryFile())
            self._pack(number, config, work)
            mine = (work.fileno(), answer.fileno(), watched)
            os.sched_setaffinity(0, cores(lease) or allowed)
            process = subprocess.Popen(
                [sys.executable, "-m", "llmsys_exp.sweeps.launcher.job", *map(str, mine)],
                env={**env, **tag_of(self._sweep, number)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(*mine, *lease.descriptors),
            )
            kept.pop_all()
        until = time.monotonic() + (timeout_s or float("inf"))
        return Job(self._sweep, number, config, Child(process), answer, owner, until)

    def _pack(self, number: int, config: DictConfig, stream: IO[bytes]) -> None:
        """Write what a job needs to a file, and go back to its start."""
        base = version.getbase()
        program = JobRuntime.instance().get("name")
        work = Work(self._task, program, None if base is None else str(base), self._context, config)
        try:
            for part in ((self._sweep, number), self._program, work):
                pickle.dump(part, stream)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise CompactHydraException(
                f"Job {number} cannot be handed to another process: {error}.  What its configuration and "
                "callbacks hold has to stand at the top of a module"
            ) from error
        stream.seek(0)


def _find(function: TaskFunction) -> Task:
    """Return where another process finds a function that `hydra.main` was given."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    depth = 0
    while found is not None and found is not function:
        found, depth = getattr(found, "__wrapped__", None), depth + 1
    if found is None:
        raise CompactHydraException(
            f"Another process would not find {name or repr(function)}: "
            "what hydra.main decorates has to stand at the top of a module"
        )
    return Task(module, name, depth)


def _failed(config: DictConfig, error: Exception) -> JobReturn:
    """Return what Hydra is told of a job that cannot tell itself."""
    task = config.copy()
    with open_dict(task):
        hydra = task.pop("hydra")
    overrides = OmegaConf.to_container(hydra.overrides.task)
    assert isinstance(overrides, list)
    told = JobReturn(overrides, task, hydra, task_name=JobRuntime.instance().get("name"))
    told.status, told.return_value = JobStatus.FAILED, error
    return told
