"""Checkpoints of a run: written whole or not at all, found again, loaded. All ranks call each method.

Weights and optimizer are DeepSpeed's own files; everything of ours beside them is JSON.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import CheckpointConfig, Weights
from llmsys_exp.errors import JobError
from llmsys_exp.runs import checkpoints as folders
from llmsys_exp.runs.checkpoints import Checkpoint
from llmsys_exp.runs.files import publish
from llmsys_exp.runs.room import free_disk_bytes
from llmsys_exp.workers import events
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.training import rng
from llmsys_exp.workers.training.agreement import check_agreement, no_whole_checkpoint
from llmsys_exp.workers.training.progress import Progress
from planner.units import gib

BYTES_PER_TRAINED_WEIGHT = 16
"""Upper bound: the weight, a master copy and Adam's two moments, in four bytes each."""
UNIVERSAL_INFO = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
"""Without this key DeepSpeed refuses to convert checkpoints of stages 1 and 2 to another number of ranks."""
SMALLEST_BYTES = 1 << 20


class Checkpoints:
    """The folder `checkpoints/` of one run."""

    def __init__(self, job: Job, ranks: Ranks, *, facts: dict[str, Any]) -> None:
        """Take the run's facts that a checkpoint must agree with, see `agreement.facts_of`."""
        self._job, self._ranks = job, ranks
        self._folder = job.paths.checkpoints
        self._settings: CheckpointConfig = job.config.checkpoint
        self._newest_step: int | None = None
        self._facts = facts

    def newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint; what is wrong with newer ones is said in a note.

        Raises:
            JobError: when checkpoints are there but none is whole, or when one was asked for.
        """
        found: list[Any] = [None]
        if self._ranks.is_first:
            folders.remove_leftovers(self._folder)
            found = [folders.newest_whole(self._folder, read_all=True)]
        newest, problems = self._ranks.gather(found[0])[0]
        if newest is None and (problems or self._job.config.resume is not None):
            raise no_whole_checkpoint(self._job.paths, problems)
        if newest is not None and problems:
            events.note(f"{'; '.join(problems)}. The run goes on from {newest.folder.name} before it")
        if newest is not None:
            check_agreement(newest, self._facts, self._job.paths)
        return newest

    def load(self, engine: Any, checkpoint: Checkpoint, *, folder: Path) -> Progress:
        """Put engine, learning rate and random generators back, and return the progress of the run.

        Args:
            engine: a fresh one: under ZeRO-3 weights cannot be loaded over trained ones.
            checkpoint: what the state is read from.
            folder: where DeepSpeed's files are: the checkpoint's, or those converted from it.
        """
        state = checkpoint.state
        # with frozen weights left out, not every weight of the model is in the file
        loaded, _ = engine.load_checkpoint(
            str(folder.parent), tag=folder.name, load_module_strict=not state["frozen_left_out"]
        )
        if loaded is None:
            raise JobError(
                f"DeepSpeed could not load {folder.name}",
                kind="checkpoint",
                where=str(folder),
                do="Read log.txt",
            )
        _set_learning_rate(engine)
        rng.restore(self._random_states(checkpoint, state["world_size"]), self._ranks.device)
        self._ranks.gather(None)
        if folder != checkpoint.folder and self._ranks.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        progress = Progress.from_dict(state["progress"])
        self._newest_step = progress.step
        progress.resumed_from.append(progress.step)
        return progress

    def has(self, step: int) -> bool:
        """Return whether the checkpoint of a step was written or loaded by this process."""
        return step == self._newest_step

    def save(self, engine: Any, progress: Progress) -> bool:
        """Write a checkpoint and remove those that are no longer kept; return whether it is there.

        A disk that is full costs the checkpoint, not the run: older ones stay, and a note says so.
        """
        name = folders.folder_name(progress.step)
        partial = self._folder / f"{folders.SAVING}{name}"
        problem = self._no_room(engine) if self._ranks.is_first else ""
        if not any(self._ranks.gather(problem)):
            problem = self._write(engine, progress, partial)
        problem = next((one for one in self._ranks.gather(problem) if one), "")
        if problem:
            if self._ranks.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            events.note(f"no checkpoint after step {progress.step}: {problem}. Older ones are kept")
            return False
        self._publish(partial, name, progress, engine)
        self._newest_step = progress.step
        return True

    def _write(self, engine: Any, progress: Progress, partial: Path) -> str:
        """Write this rank's files and return what went wrong."""
        with _errors_kept(engine.checkpoint_engine) as errors:
            engine.save_checkpoint(
                str(self._folder),
                tag=partial.name,
                client_state=dict(UNIVERSAL_INFO),
                save_latest=False,
                exclude_frozen_parameters=self._leaves_frozen_out(engine),
            )
        try:
            write_json(partial / _random_file(self._ranks.rank), rng.capture(self._ranks.device))
        except OSError as error:
            errors.append(error)
        return f"{_first_line(errors[0])}" if errors else ""

    def _publish(self, partial: Path, name: str, progress: Progress, engine: Any) -> None:
        """Describe all files, give the folder its name, and only then remove old ones."""
        mine = folders.file_names(partial)[self._ranks.rank :: self._ranks.world_size]
        described = self._ranks.gather(folders.describe_files(partial, mine))
        if not self._ranks.is_first:
            return
        files = {file: facts for part in described for file, facts in part.items()}
        state = {
            "progress": progress.to_dict(),
            "world_size": self._ranks.world_size,
            "zero_stage": engine.zero_optimization_stage(),
            "frozen_left_out": self._leaves_frozen_out(engine),
            **self._facts,
            "versions": {one: metadata.version(one) for one in ("torch", "deepspeed")},
        }
        marker = {
            "schema_version": folders.SCHEMA_VERSION,
            "state": state,
            "files": dict(sorted(files.items())),
        }
        write_json(partial / folders.MARKER, marker)
        # a broken one may be there, which the run had to go back behind
        folders.remove(self._folder / name)
        partial.rename(self._folder / name)
        # for DeepSpeed's own tools, which look for it
        publish(self._folder / "latest", name.encode())
        self._prune()

    def _prune(self) -> None:
        whole = [one for one in folders.list_checkpoints(self._folder) if not one.problem(read_all=False)]
        losses = {one.step: folders.loss_there(one) for one in whole}
        keep_last, keep_best = self._settings.keep_last, self._settings.keep_best
        for step in folders.to_remove(losses, keep_last=keep_last, keep_best=keep_best):
            folders.remove(self._folder / folders.folder_name(step))

    def _no_room(self, engine: Any) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        written = folders.list_checkpoints(self._folder)
        trained = sum(
            getattr(one, "ds_numel", one.numel()) for one in engine.module.parameters() if one.requires_grad
        )
        needed = written[0].size_bytes if written else trained * BYTES_PER_TRAINED_WEIGHT
        free = free_disk_bytes(self._folder)
        if free >= max(needed, SMALLEST_BYTES):
            return ""
        return f"it needs {gib(needed):.2f} GiB and {gib(free):.2f} GiB are free"

    def _leaves_frozen_out(self, engine: Any) -> bool:
        # a random base is nowhere else; any other is loaded again from where it came
        from_file = self._job.config.model.weights is not Weights.random
        return from_file and any(not one.requires_grad for one in engine.module.parameters())

    def _random_states(self, checkpoint: Checkpoint, world_size: int) -> Any:
        # with more ranks than then, the new ones share states: dropout alone is touched by that
        file = checkpoint.folder / _random_file(self._ranks.rank % world_size)
        return json.loads(file.read_text(encoding="utf-8"))


@contextmanager
def _errors_kept(checkpoint_engine: Any) -> Iterator[list[Exception]]:
    """Let a rank whose disk refuses go on to the barriers in which the others wait for it."""
    errors: list[Exception] = []
    write = checkpoint_engine.save

    def save(*arguments: Any, **named: Any) -> Any:
        try:
            return write(*arguments, **named)
        except (OSError, RuntimeError) as error:
            errors.append(error)
            return None

    checkpoint_engine.save = save
    try:
        yield errors
    finally:
        del checkpoint_engine.save


def _set_learning_rate(engine: Any) -> None:
    """Give the coming step the rate of this run's schedule, which may be longer than the saved one."""
    scheduler = engine.lr_scheduler
    factors = getattr(scheduler, "lr_lambdas", None)
    if not factors:
        return
    for group, base, factor in zip(
        scheduler.optimizer.param_groups, scheduler.base_lrs, factors, strict=True
    ):
        group["lr"] = base * factor(scheduler.last_epoch)
    scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]


def _random_file(rank: int) -> str:
    return f"random-{rank}.json"


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    if "inline_container" in str(error):  # torch's writer, which knows no reasons
        return "the disk took no more data"
    return (str(error).splitlines() or [type(error).__name__])[0]
