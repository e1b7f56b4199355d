"""`export` and `quantize` on a run that is there already, with its export settings changed if asked to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from llmsys_exp.config.limits import limit_problems
from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import Config, MethodKind, Step
from llmsys_exp.config.tree import settings_tree
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.inputs.find import Inputs
from llmsys_exp.jobs.quantize_gate import check_quantize
from llmsys_exp.jobs.shown import run_titled
from llmsys_exp.launch.environment import worker_env
from llmsys_exp.launch.gpus import installed_cards, visible_entries
from llmsys_exp.launch.interpreter import interpreter, require_engine
from llmsys_exp.report.console import Console
from llmsys_exp.report.pages.at_end import write_run_page
from llmsys_exp.runs import record
from llmsys_exp.runs.checkpoints import newest_whole
from llmsys_exp.runs.facts import Asked
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.later import add_later
from llmsys_exp.runs.lock import locked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.recording import Recording

OPEN = ("export.", "gate.", "launcher.", "hardware.", "steps")
"""What may still be changed: the training is done, and its other settings say how."""
TITLES = {Step.export: "Writing the model", Step.quantize: "Quantising the model"}


def export_run(folder: Path, overrides: Sequence[str], console: Console) -> dict[str, Any]:
    """Merge or cut anew, quantise if asked to, and return each step's result.

    Raises:
        UserError: before anything starts, for what is known by then.
    """
    paths = RunPaths(folder.absolute())
    job = record.read_job(paths, where=str(folder))
    config = changed(job["config"], overrides)
    steps = _steps(paths, config, overrides)
    python = interpreter(config)
    for step in steps:
        require_engine(step.name, python)
    inputs = Inputs(**job["resolved"])
    if Step.quantize in steps:
        check_quantize(config, source=_quantised_source(paths, inputs), folder=paths.folder, console=console)
    env = worker_env(config, python=python, device=inputs.device, ranks=1)
    times: dict[str, float] = {}
    asked = Asked(
        config=config,
        choices=(),
        command=("llmsys", "export", str(folder), *overrides),
        overrides=overrides,
        inputs=inputs.to_dict(),
        python=python,
        gpus=visible_entries(env, installed_cards()) or (),
        env=env,
    )
    with locked(paths.lock), Recording(paths, asked, start_file=paths.export_start) as recording:
        write_json(paths.export_job, {**job, "config": record.worker_settings(config)})
        for step in steps:
            command = [python, "-m", f"llmsys_exp.workers.{step.name}", str(paths.folder)]
            times[step.name] = run_titled(
                command, TITLES[step], console, env=env, log=paths.log, verbose=False
            )
        there = record.read_results(paths)
        results = {step.name: there.get(step.name, {}) for step in steps}
        add_later(paths, recording.later("export", results, times))
    for note in write_run_page(paths):
        console.line(console.style(f"  note: {note}", "yellow"))
    return results


def changed(plain: dict[str, Any], overrides: Sequence[str]) -> Config:
    """Return a run's configuration with `key=value` texts applied.

    Raises:
        ConfigError: naming every key that is unknown, no longer open, or has a wrong value.
    """
    settings = to_plain(from_plain(plain))
    problems: list[UserError] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        key = {"gate": "gate.policy"}.get(key, key)
        problem = _closed(text, key if equals else "")
        if problem is not None:
            problems.append(problem)
            continue
        *sections, name = key.split(".")
        node = settings
        for section in sections:
            node = node[section]
        node[name] = yaml.safe_load(value)
    if problems:
        raise ConfigError(problems)
    config = from_plain(settings)
    outside = limit_problems(config)
    if outside:
        raise ConfigError(outside)
    return config


def _closed(text: str, key: str) -> UserError | None:
    tree = settings_tree()
    if not key:
        return UserError(f"{text} is not an argument", where="llmsys export", do="Write KEY=VALUE")
    if key not in tree.leaves:
        near = tree.nearest(key)
        return UserError(f"{key} is not a setting", where=text, do=f"Did you mean {near}?" if near else "")
    if not key.startswith(OPEN):
        return UserError(
            f"{key} can no longer be changed",
            where=text,
            why="The training is done",
            do="`llmsys export` takes export.*, gate, launcher.* and steps",
        )
    return None


def _steps(paths: RunPaths, config: Config, overrides: Sequence[str]) -> list[Step]:
    """`steps` if given; else export, and quantize where a setting of GPTQ is given."""
    given = {text.partition("=")[0] for text in overrides}
    quantise = any(key.startswith("export.gptq.") for key in given)
    steps = [step for step in config.steps if step in TITLES] if "steps" in given else [Step.export]
    if quantise and Step.quantize not in steps:
        steps.append(Step.quantize)
    if not steps:
        raise UserError("steps names neither export nor quantize", where="steps", do="steps=[export]")
    whole = paths.merged.is_dir() and paths.result(Step.export.name).is_file()
    recut = any(key.startswith("export.") and not key.startswith("export.gptq.") for key in given)
    if quantise and whole and not recut and "steps" not in given:
        steps.remove(Step.export)  # it is there already
    _need_trained(paths, config)
    return steps


def _need_trained(paths: RunPaths, config: Config) -> None:
    adapters = config.method.kind in (MethodKind.lora, MethodKind.qlora)
    wanted = paths.adapter if adapters else paths.merged
    if not wanted.is_dir():
        raise UserError(
            f"This run has no {'adapter to merge' if adapters else 'model to export'}",
            where=str(paths.folder),
            do=_how_to_train(paths),
        )
    if adapters and config.method.quantization.kind == "gptq" and config.method.kind is MethodKind.qlora:
        raise UserError(
            "An adapter over a GPTQ base cannot be merged",
            where="method.quantization.kind=gptq",
            why="Packed weights take no update",
            do="Serve adapter/ beside the base",
        )


def _how_to_train(paths: RunPaths) -> str:
    newest, _ = newest_whole(paths.checkpoints, read_all=False)
    if newest is None:
        return "Train first: llmsys train"
    return (
        f"Finish it first: `llmsys train resume={paths.folder}`; checkpoint=last writes the weights of "
        f"step {newest.step} as they are"
    )


def _quantised_source(paths: RunPaths, inputs: Inputs) -> Path | None:
    """A folder with the shape of what will be quantised: the merged model, else its base."""
    if paths.merged.is_dir():
        return paths.merged
    return None if inputs.model_folder is None else Path(inputs.model_folder)
