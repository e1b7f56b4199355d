"""The packages of then as a requirements file, and the commands that make an environment of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.runs.files import disk_errors, publish

OURS = "llmsys-exp"


def write_requirements(logged: Logged, file: Path) -> list[str]:
    """Write every package of a run with its version, and return the commands to use the file.

    Raises:
        UserError: when the record names no packages, the file is there already, or the disk refuses.
    """
    environment = logged.section("environment")
    packages: Mapping[str, Any] = environment.get("packages") or {}
    if not packages:
        raise UserError("The record names no packages", where=str(logged.file))
    lines = [f"# Packages of run {logged.id}, Python {environment.get('python')}"]
    local = {name: str(version) for name, version in packages.items() if "+" in str(version)}
    for name, version in local.items():
        lines.append(f"# {name} {version} is a build of its own: it comes from its project's index")
    kept = sorted(packages.items(), key=lambda pair: pair[0].lower())
    lines += [f"{name}=={version}" for name, version in kept if name.lower().replace("_", "-") != OURS]
    with disk_errors(file):
        try:
            publish(file, ("\n".join(lines) + "\n").encode(), overwrite=False)
        except FileExistsError:
            raise UserError(f"{file} exists", where="--environment", do="Name another file") from None
    return _commands(environment, file, local)


def _commands(environment: Mapping[str, Any], file: Path, local: Mapping[str, str]) -> list[str]:
    version = ".".join(str(environment.get("python") or "3").split(".")[:2])
    folder = f"venv-{file.stem}"
    index = " --extra-index-url INDEX" if local else ""
    commands = [
        f"python{version} -m venv {folder}",
        f"{folder}/bin/pip install -r {file}{index}",
    ]
    if local:
        named = ", ".join(f"{name} {version}" for name, version in local.items())
        commands.append(f"# INDEX: the package index of the project that makes {named}")
    commands.append(f"{folder}/bin/pip install --no-deps -e CHECKOUT_OF_LLMSYS")
    return commands
