"""Start a dry run: a folder with the job as the training worker gets it, one process, one result."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from llmsys_exp.config.schema import Config, MethodKind, Weights
from llmsys_exp.config.tree import copy_of
from llmsys_exp.dryrun.card import Card, find_card
from llmsys_exp.dryrun.checks import GPTQ, DryAsk, check_ask
from llmsys_exp.dryrun.outcome import Outcome
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.inputs.find import Inputs, find_model
from llmsys_exp.jobs.shown import run_shown
from llmsys_exp.launch.ds_config import ds_config
from llmsys_exp.launch.environment import worker_env
from llmsys_exp.launch.failure import OOM_HOST
from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.launch.interpreter import interpreter, require_engine
from llmsys_exp.plan import Plan
from llmsys_exp.plan.case import CPU, world_size
from llmsys_exp.report.console import Console
from llmsys_exp.runs.files import read_json, write_json
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.record import write_job
from planner.units import gib

MODULE = "llmsys_exp.workers.dryrun"
TIMEOUT_S = 900.0
"""A process; 70B under ZeRO-3 takes a few minutes, and operators of DeepSpeed may be compiled first."""


@dataclass(frozen=True)
class Bench:
    """Where dry runs of a job take place.

    Attributes:
        python: interpreter of the worker.
        card: the GPU; None on the CPU.
        limit_bytes: what the allocator may take on the card that the job is planned for; None: no limit.
    """

    python: str
    card: Card | None
    limit_bytes: int | None

    @property
    def is_short(self) -> bool:
        """Whether this GPU ends before the limit of the one that is planned for."""
        return (
            self.card is not None and self.limit_bytes is not None and self.limit_bytes > self.card.free_bytes
        )


def make_bench(plan: Plan, ask: DryAsk) -> Bench:
    """Find interpreter and GPU, and refuse what cannot be tried here.

    Raises:
        UserError: with the reason.
    """
    config = plan.config
    check_ask(config, ask)
    python = interpreter(config)
    require_engine("train", python)
    if config.hardware.gpu == CPU:
        return Bench(python, None, None)
    card = find_card(list(config.launcher.gpus), wanted=config.hardware.gpu, shared=ask.shared)
    bench = Bench(python, card, plan.verdict.budget_bytes)
    least = plan.forecast.peak_allocated_bytes
    if bench.is_short and least > card.free_bytes:
        raise UserError(
            f"This {card.name} has {gib(card.free_bytes):.1f} GiB free, and the job is forecast to hold "
            f"{gib(least):.1f} GiB",
            where=f"hardware.gpu={config.hardware.gpu}",
            do="Dry-run it on a larger GPU, or with more ranks or a smaller batch",
        )
    return bench


def dry_run(
    plan: Plan, bench: Bench, console: Console, *, rank: int = 0, limit_bytes: int | None = None
) -> Outcome:
    """Run one rank in a process of its own; running out of memory is an outcome.

    Args:
        plan: the settled job.
        bench: where.
        console: shows how far it is.
        rank: which rank.
        limit_bytes: another limit than the bench's.

    Raises:
        UserError: when it fails in any other way; the folder is then kept, for its log.
    """
    config = _random_weights(plan.config)
    paths = RunPaths(Path(tempfile.mkdtemp(prefix="llmsys-dryrun-")))
    _write(paths, replace(plan, config=config), rank, limit_bytes or bench.limit_bytes)
    try:
        outcome = _run(paths, config, bench, console, rank)
    except JobError:
        raise  # its message names the log
    except BaseException:
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    shutil.rmtree(paths.folder, ignore_errors=True)
    return outcome


def _run(paths: RunPaths, config: Config, bench: Bench, console: Console, rank: int) -> Outcome:
    env = worker_env(config, python=bench.python, device="cpu" if bench.card is None else "cuda", ranks=1)
    if bench.card is not None:
        env[VISIBLE] = bench.card.entry
    command = [bench.python, "-m", MODULE, str(paths.folder)]
    timeout_s = config.launcher.timeout_s or TIMEOUT_S
    try:
        run_shown(command, console, env=env, log=paths.log, timeout_s=timeout_s)
    except JobError as failure:
        if failure.kind != OOM_HOST:
            raise
        # the kernel ended it, so that it could write nothing
        name = "cpu" if bench.card is None else bench.card.name
        oom = {"kind": OOM_HOST, **failure.details}
        return Outcome(False, rank, world_size(config), name, bench.limit_bytes, oom=oom)
    result = read_json(paths.result("dryrun"))
    if result is None:
        raise JobError("The dry run ended well but left no result", where=str(paths.log))
    return Outcome.read(result)


def _write(paths: RunPaths, plan: Plan, rank: int, limit_bytes: int | None) -> None:
    config = plan.config
    device = "cpu" if config.hardware.gpu == CPU else "cuda"
    inputs = Inputs(_model_folder(config), None, None, None, world_size(config), device)
    write_job(paths, plan=plan, inputs=inputs.to_dict(), engine={"serving": None, "engine_key": ""})
    write_json(paths.ds_config, ds_config(config, world_size=inputs.world_size, device=device))
    write_json(paths.dry_run, {"rank": rank, "limit_bytes": limit_bytes})


def _random_weights(config: Config) -> Config:
    """Return the job with weights that are drawn: their values do not move memory, and need no files."""
    own = copy_of(config)
    packed = own.method.kind is MethodKind.qlora and own.method.quantization.kind == GPTQ
    if not packed:
        own.model.weights = Weights.random
    return own


def _model_folder(config: Config) -> str | None:
    """Return where the shape is read, as the forecast does: the planner's table goes before a folder."""
    drawn = config.model.weights is Weights.random
    return None if drawn and config.model.entry is not None else find_model(config)
