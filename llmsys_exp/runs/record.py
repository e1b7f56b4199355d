"""Write the records of a run: what was asked, what was started, what came out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.errors import UserError
from llmsys_exp.evidence.secrets import LEFT_OUT, secret_variables, text_without_secrets
from llmsys_exp.plan import Choice, Plan, plan_to_dict
from llmsys_exp.plan.facts import worker_facts
from llmsys_exp.runs.files import disk_errors, read_json, write_json, write_text
from llmsys_exp.runs.paths import RunPaths

JOB_SCHEMA_VERSION = 1


_SCRIPT = """#!/bin/sh
# Starts the training worker of this run by hand. It reads job.json and ds_config.json beside this file.
set -eu
{exports}
exec {command}
"""


def write_job(paths: RunPaths, *, plan: Plan, inputs: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
    """Write job.json, all that a worker needs to know; `engine` has `serving` and `engine_key`."""
    _write_job(paths, plan.config, plan_to_dict(plan) | worker_facts(plan), inputs, engine)


def write_inference_job(
    paths: RunPaths,
    *,
    config: Config,
    choices: Sequence[Choice],
    inputs: Mapping[str, Any],
    engine: Mapping[str, Any],
) -> None:
    """Write job.json of a run that trains nothing."""
    _write_job(paths, config, {"choices": [vars(choice) for choice in choices]}, inputs, engine)


def _write_job(
    paths: RunPaths, config: Config, plan: Any, inputs: Mapping[str, Any], engine: Mapping[str, Any]
) -> None:
    job = {"schema_version": JOB_SCHEMA_VERSION, "config": worker_settings(config), "plan": plan}
    write_json(paths.job, job | {"resolved": dict(inputs)} | dict(engine))


def worker_settings(config: Config) -> dict[str, Any]:
    """Return the settings that workers read; secret variables they have in their environment."""
    settings: dict[str, Any] = to_plain(config)
    env = settings["launcher"]["env"]
    env |= dict.fromkeys(secret_variables(env), LEFT_OUT)
    return settings


def write_hydra(paths: RunPaths, *, files: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Write `.hydra/` as Hydra does: the composed tree, Hydra's own settings, the overrides.

    Values of `variables` (`launcher.env`) that are secrets are left out.
    """
    with disk_errors(paths.hydra):
        paths.hydra.mkdir()
    for name, text in files.items():
        write_text(paths.hydra / name, text_without_secrets(text, variables))


def write_launch_script(
    paths: RunPaths, *, command: Sequence[str], variables: Mapping[str, str], hides: Sequence[str] = ()
) -> None:
    """Write launch.sh, which starts what we start, with the variables we add and without those we hide."""
    lines = [f"unset {key}" for key in hides]
    for key, value in sorted(variables.items()):
        if key == "PATH":
            lines.append(f'export PATH={shlex.quote(value.partition(":")[0])}:"$PATH"')
        elif secret_variables({key: value}):
            lines.append(f': "${{{key}:?was left out of this file as a secret: set it}}"; export {key}')
        else:
            lines.append(f"export {key}={shlex.quote(value)}")
    write_text(paths.launch_script, _SCRIPT.format(exports="\n".join(lines), command=shlex.join(command)))
    with disk_errors(paths.launch_script):
        paths.launch_script.chmod(0o755)


def write_env_file(path: Path, *, variables: Mapping[str, str]) -> None:
    """Write the variables that DeepSpeed's runner sets on other machines, one KEY=VALUE a line.

    It needs them as they are, secrets too: nobody else may read the file.
    """
    with disk_errors(path):
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(
            "".join(f"{key}={value}\n" for key, value in sorted(variables.items())), encoding="utf-8"
        )


def keep_attempt(path: Path, number: int) -> None:
    """Move what belongs to an attempt that failed aside: `job.json` becomes `job.attempt1.json`."""
    if path.exists():
        with disk_errors(path):
            path.rename(path.with_name(f"{path.stem}.attempt{number}{path.suffix}"))


def read_job(paths: RunPaths, *, where: str) -> dict[str, Any]:
    """Return job.json of a run folder.

    Raises:
        UserError: when the folder, named as the user did in `where`, holds none.
    """
    job = read_json(paths.job)
    if not isinstance(job, dict) or "config" not in job:
        raise UserError(
            "This is not a run folder", where=where, why="It holds no job.json", do="llmsys runs lists them"
        )
    return job


def read_results(paths: RunPaths) -> dict[str, dict[str, Any]]:
    """Return the result of each step that is complete."""
    results = {}
    for path in sorted(paths.results.glob("*.json")):
        content = read_json(path)
        if isinstance(content, dict):
            results[path.stem] = content
    return results


def results_of(paths: RunPaths, steps: Sequence[Step]) -> dict[str, dict[str, Any]]:
    """Return all results, those of `steps` among them.

    Raises:
        UserError: naming a step that ended well and left none.
    """
    results = read_results(paths)
    for step in steps:
        if step.name not in results:
            raise UserError(
                f"The step {step.name} ended well but left no result",
                where=str(paths.result(step.name)),
                do="Look at log.txt in the run folder",
            )
    return results
