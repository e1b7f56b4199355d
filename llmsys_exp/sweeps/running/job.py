"""Run one point: `python -m llmsys_exp.sweeps.running.job SWEEP_FOLDER NUMBER [--timeout SECONDS]`.

The process claims the point in the ledger, does what `llmsys train` or `llmsys infer` does, and writes down
how that ended. It needs nobody above it: a runner, a batch system or a user may start it, and where two do,
the second one is told that the point is taken.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from llmsys_exp.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_STOPPED, DoesNotFit, JobError, UserError
from llmsys_exp.launch.failure import BUG, DISK, OTHER, TIMEOUT
from llmsys_exp.launch.stopping import SAVING_GRACE_S
from llmsys_exp.runs.checkpoints import newest_whole
from llmsys_exp.runs.files import is_full, read_json
from llmsys_exp.runs.folder import ON_CREATED
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, open_sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, PRUNED, RUNNING, Ledger
from llmsys_exp.sweeps.running.processes import end_point, identity, tag_of
from llmsys_exp.sweeps.search.metrics import values_told

EXIT_TAKEN = 75
"""Somebody else runs the point, or it is done."""
STOPPED = "stopped"
TIMEOUT_GRACE_S = 60.0
LIFELINE = "LLMSYS_SWEEP_LIFELINE"
"""Variable that names a descriptor; when nobody holds the other end any more, the job saves and ends."""
LEASE = "LLMSYS_SWEEP_LEASE"
"""Variable in which a runner says what it has leased for the job, for the ledger."""


class PointJob:
    """One attempt at one point."""

    def __init__(self, paths: SweepPaths, sweep: Sweep, number: int, timeout_s: float | None) -> None:
        self._sweep, self._point = sweep, sweep.points[number - 1]
        self._ledger: Ledger = sweep.ledger(paths)
        self._timeout_s, self._timed_out = timeout_s, False
        self._attempt, self._started = 0, time.monotonic()
        self.folder: str | None = None

    def run(self) -> int:
        """Claim the point, run it and write down how it ended; return the exit code."""
        before = self._ledger.states()[self._point.number]
        earlier, more = before.fields.get("folder"), before.overrides
        lease = [name for name in os.environ.get(LEASE, "").split(",") if name]
        if not self._ledger.move(self._point.number, RUNNING, **identity(), lease=lease):
            return EXIT_TAKEN
        self._attempt = self._ledger.states()[self._point.number].attempt
        os.environ.update(tag_of(self._sweep.id, self._point.number))
        ON_CREATED.set(self._tell_folder)
        timer = threading.Timer(self._timeout_s or 0, self._expire)
        timer.daemon = True  # never started without a limit
        if self._timeout_s is not None:
            timer.start()
        try:
            os.chdir(self._sweep.started_in)
            if earlier is not None and not more and _can_go_on(self._sweep.verb, RunPaths(Path(earlier))):
                return self._go_on(Path(earlier))
            return self._work(self._sweep.overrides(self._point, more))
        finally:
            timer.cancel()

    def _go_on(self, folder: Path) -> int:
        """Go on with what an attempt has left; where that is refused, begin anew beside it."""
        self._tell_folder(folder)
        try:
            return self._work([f"resume={folder}"], refusing=True)
        except UserError as error:
            sys.stderr.write(f"Cannot go on in {folder}: {error}\nBeginning anew.\n")
            return self._work(self._sweep.overrides(self._point))

    def _work(self, arguments: list[str], *, refusing: bool = False) -> int:
        """Call the verb and write down how it ended; `refusing`: hand on what is refused before the start."""
        sys.stdout.write(f"$ llmsys {shlex.join([self._sweep.verb, *arguments])}\n")
        sys.stdout.flush()
        try:
            code = import_module(f"llmsys_exp.cli.{self._sweep.verb}").run(arguments)
        except KeyboardInterrupt:
            return self._fail(STOPPED, "Stopped from outside", EXIT_INTERRUPTED)
        except UserError as error:
            if refusing and not isinstance(error, JobError):
                raise
            return self._refused(error)
        except Exception as error:
            import traceback

            if is_full(error):
                return self._fail(DISK, str(error), 1)
            traceback.print_exc()
            return self._fail(BUG, f"{type(error).__name__}: {error}", 1)
        if code != EXIT_OK:
            return self._fail(OTHER, f"The command ended with exit code {code}", code)
        if refusing and not RunPaths(Path(self.folder or "")).manifest.is_file():
            raise UserError("Nothing was left to do there, and yet it is not complete")
        self._end(DONE, **values_told(self._sweep.search, self.folder))
        return EXIT_OK

    def _refused(self, error: UserError) -> int:
        sys.stderr.write(f"error: {error}\n")
        if isinstance(error, JobError) and error.log_tail:
            sys.stderr.write(f"Last lines of the log:\n{error.log_tail}\n")
        kind = STOPPED if error.exit_code == EXIT_STOPPED else error.kind
        if is_full(error.__cause__):
            kind = DISK
        fix = {"do": error.do} if error.do and not isinstance(error, DoesNotFit) else {}
        return self._fail(kind, error.what or str(error), error.exit_code, **fix)

    def _fail(self, kind: str, what: str, code: int, **told: Any) -> int:
        if self._timed_out:
            kind, what, told = TIMEOUT, f"It took longer than {self._timeout_s:g} s", {}
        pruning = self._ledger.states()[self._point.number].fields.get("pruning")
        if pruning is not None:
            self._end(PRUNED, **pruning)
            return code
        self._end(FAILED, kind=kind, what=what, exit_code=code, **told)
        return code

    def _end(self, state: str, **told: Any) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        self._ledger.move(self._point.number, state, attempt=self._attempt, seconds=seconds, **told)

    def _tell_folder(self, folder: Path) -> None:
        self.folder = str(folder)
        self._ledger.move(self._point.number, RUNNING, attempt=self._attempt, folder=self.folder)

    def _expire(self) -> None:
        """Stop the work as Ctrl-C does; where it does not end by that, end everything."""
        self._timed_out = True
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TIMEOUT_GRACE_S)
        self._fail(TIMEOUT, "", EXIT_INTERRUPTED)
        end_point(self._sweep.id, self._point.number)
        os._exit(EXIT_INTERRUPTED)


def _can_go_on(verb: str, paths: RunPaths) -> bool:
    """Whether `resume=` finds something in a run folder that is worth going on with."""
    if not isinstance(read_json(paths.job), dict):
        return False
    if verb == "infer":
        return paths.generations.is_file()
    return paths.result("train").is_file() or newest_whole(paths.checkpoints, read_all=False)[0] is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run the point."""
    parser = argparse.ArgumentParser(prog="python -m llmsys_exp.sweeps.running.job", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("--timeout", type=float, default=None, metavar="SECONDS")
    asked = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        paths, sweep = open_sweep(asked.folder)
        if not 1 <= asked.number <= len(sweep.points):
            raise UserError(f"The sweep has points 1 to {len(sweep.points)}", where=str(asked.number))
        if LIFELINE in os.environ:
            line = (int(os.environ.pop(LIFELINE)), sweep.id, asked.number)
            threading.Thread(target=_follow, args=line, daemon=True).start()
        return PointJob(paths, sweep, asked.number, asked.timeout).run()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _follow(line: int, sweep: str, number: int) -> None:
    """Stop as at a first Ctrl-C when whoever started us is gone; where that does not help, end everything."""
    os.read(line, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVING_GRACE_S)
    end_point(sweep, number)
    os._exit(EXIT_INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
