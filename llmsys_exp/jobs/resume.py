"""Take up a run that was stopped or killed: its own configuration, permitted overrides on top.

Everything is checked before a file of the run is touched; what it has measured so far is moved, never lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import with_absolute_paths
from llmsys_exp.config.limits import limit_problems
from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.errors import ConfigError, JobError, UserError
from llmsys_exp.inputs.find import Inputs, find_inputs
from llmsys_exp.jobs.job import keep_reasons
from llmsys_exp.jobs.resume_overrides import apply_overrides, check_changes
from llmsys_exp.launch.failure import BUG, DISK, KILLED, NCCL, OOM_HOST, TIMEOUT
from llmsys_exp.plan import Choice, Plan
from llmsys_exp.plan.case import world_size
from llmsys_exp.runs import record
from llmsys_exp.runs.checkpoints import Checkpoint, newest_whole
from llmsys_exp.runs.files import disk_errors, publish, read_json
from llmsys_exp.runs.paths import RunPaths

KEY = "resume="
REFUSED = "resume"
"""Kind of the error with which a worker will not go on from the checkpoint that is there."""


@dataclass(frozen=True)
class Resumed:
    """A run folder with what is to be done in it."""

    paths: RunPaths
    config: Config
    steps: tuple[Step, ...]
    """Those whose results are not there yet."""
    checkpoint: Checkpoint | None
    """Where training goes on; None where it is finished."""
    extends: bool
    """Training was finished and is to go on for longer."""
    inputs: Inputs
    """Files as they were found then, by their absolute paths: relative ones began at another folder."""
    choices: tuple[Choice, ...]
    """Settings that were chosen then, each with its reason."""

    def keep_choices(self, plan: Plan) -> Plan:
        """Return a plan of the settled configuration with the reasons that its values were chosen for."""
        return keep_reasons(plan, self.choices)

    def describe(self) -> str:
        """Say in a line where the run goes on."""
        if not self.steps:
            return f"All steps are done in {self.paths.folder}; what is missing is its manifest"
        if self.checkpoint is None:
            return f"Going on with {', '.join(one.name for one in self.steps)} in {self.paths.folder}"
        return f"Going on after step {self.checkpoint.step} in {self.paths.folder}"


def is_resume(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks to go on with a run."""
    return any(text.startswith(KEY) for text in arguments)


def split_resume(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the run folder and the other overrides.

    Raises:
        UserError: for more than one folder, or for flags, which only compose new configurations.
    """
    folders = [text.removeprefix(KEY) for text in arguments if text.startswith(KEY)]
    rest = [text for text in arguments if not text.startswith(KEY)]
    flags = [text for text in rest if text.startswith("-")]
    if flags:
        raise UserError(f"{flags[0]} does not go with resume=", why="One run is taken up, as it was composed")
    if len(folders) != 1 or not folders[0]:
        raise UserError("resume takes one run folder", do="llmsys runs lists them")
    return Path(folders[0].strip("'\"")).expanduser().absolute(), rest


def take_up(folder: Path, overrides: Sequence[str]) -> Resumed:
    """Read a run folder, apply overrides and find out what is left to do.

    Raises:
        UserError: when it is no run folder, when an override would change the training, or when no checkpoint
            is whole.
    """
    paths = RunPaths(folder)
    before = _configuration(paths)
    config = with_absolute_paths(apply_overrides(before, overrides))
    problems = limit_problems(config)
    if problems:
        raise ConfigError(problems)
    check_changes(before, config)
    fit_batch(before, config)
    results = record.read_results(paths)
    trained = results.get(Step.train.name)
    extends = trained is not None and _is_longer(before, config)
    steps = tuple(one for one in config.steps if extends or one.name not in results)
    checkpoint = None
    if Step.train in steps:
        checkpoint = _checkpoint(paths, finished=trained is not None)
    config.resume = str(folder)
    job = read_json(paths.job)
    choices = tuple(Choice(**one) for one in (job.get("plan") or {}).get("choices", ()))
    inputs = _inputs(job["resolved"], config, steps)
    return Resumed(paths, config, steps, checkpoint, extends, inputs, choices)


def tell_way_on(failure: JobError, paths: RunPaths) -> None:
    """Add to a failure that was not the training's own how to go on after it, where a checkpoint is there."""
    if failure.kind not in (BUG, DISK, KILLED, NCCL, OOM_HOST, TIMEOUT):
        return
    newest, _ = newest_whole(paths.checkpoints, read_all=False)
    if newest is not None:
        go_on = f"Go on after step {newest.step} with `llmsys train resume={paths.folder}`"
        failure.do = f"{failure.do.rstrip('.')}.  {go_on}".lstrip(". ")


@contextmanager
def put_back_when_refused(paths: RunPaths) -> Iterator[None]:
    """Leave what describes the run as it was, where the worker finds that it cannot go on."""
    described = (paths.job, paths.ds_config, paths.launch_script, paths.start)
    before = {path: path.read_bytes() for path in described if path.is_file()}
    try:
        yield
    except JobError as failure:
        if failure.kind == REFUSED:
            for path, data in before.items():
                mode = path.stat().st_mode
                publish(path, data)
                path.chmod(mode)
        raise


def put_aside(paths: RunPaths) -> None:
    """Move results of the run so far into `history/`, so that it no longer looks complete."""
    # answers of the model as it was then: who finds them does not ask those prompts again
    answers = [paths.generations, paths.outputs, paths.answers, paths.report]
    files = [paths.manifest, *sorted(paths.results.glob("*.json")), *answers]
    there = [one for one in files if one.is_file()]
    if not there:
        return
    with disk_errors(paths.history):
        paths.history.mkdir(exist_ok=True)
        target = paths.history / str(1 + sum(1 for _ in paths.history.iterdir()))
        target.mkdir()
        for one in there:
            one.rename(target / one.name)


def _configuration(paths: RunPaths) -> Config:
    return from_plain(record.read_job(paths, where=f"resume={paths.folder}")["config"])


def _inputs(resolved: dict[str, Any], config: Config, steps: Sequence[Step]) -> Inputs:
    known = {one.name for one in fields(Inputs)}
    inputs = Inputs(**{key: value for key, value in resolved.items() if key in known})
    if Step.infer in steps:
        inputs = replace(inputs, prompts_file=find_inputs(config, [Step.infer]).prompts_file)
    gone = [one for one in (inputs.model_folder, inputs.train_file, inputs.heldout_file) if _is_gone(one)]
    if gone:
        raise ConfigError([UserError("A file of the run is gone", where=one) for one in gone])
    return replace(inputs, world_size=world_size(config))


def _is_gone(path: str | None) -> bool:
    return path is not None and path.startswith("/") and not Path(path).exists()


def _is_longer(before: Config, after: Config) -> bool:
    old, new = before.training, after.training
    if new.epochs > old.epochs:
        return True
    if old.max_steps is None:
        return False
    return new.max_steps is None or new.max_steps > old.max_steps


def _checkpoint(paths: RunPaths, *, finished: bool) -> Checkpoint:
    newest, problems = newest_whole(paths.checkpoints, read_all=False)
    if newest is not None:
        return newest
    why = "; ".join(problems) or "It was started without checkpoint.every, or stopped before the first one"
    # launch.sh goes on from checkpoints that are there, and refuses broken ones
    first = f"rm -r {paths.checkpoints}; " if problems else ""
    again = f"To begin again at step 0: {first}sh {paths.launch_script}"
    if finished:
        again = "Train again with more steps"
    raise UserError(
        "This run has no whole checkpoint to go on from", where=f"resume={paths.folder}", why=why, do=again
    )


def fit_batch(before: Config, config: Config) -> None:
    """Keep the sequences of an optimizer step when the number of ranks or the micro-batch changes.

    Raises:
        UserError: when they cannot be kept.
    """
    total = before.training.global_batch or _product(before)
    training, ranks = config.training, world_size(config)
    if training.global_batch not in (None, total):
        raise UserError(
            f"training.global_batch was {total} and cannot become {training.global_batch}",
            why="Every later step would see other rows",
            do="Start a new run",
        )
    if total % ranks:
        fit = [str(one) for one in range(1, total + 1) if total % one == 0]
        raise UserError(
            f"{total} sequences a step cannot be shared out among {ranks} ranks",
            where="hardware.gpus_per_node",
            do=f"Take {', '.join(fit)} ranks",
        )
    share, wanted = total // ranks, int(training.micro_batch)
    training.micro_batch = max(one for one in range(1, min(wanted, share) + 1) if share % one == 0)
    training.grad_accum = share // training.micro_batch
    training.global_batch = total


def _product(config: Config) -> int:
    training = config.training
    return int(training.micro_batch) * int(training.grad_accum) * world_size(config)
