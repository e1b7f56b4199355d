"""Which Python runs a worker, which runs SGLang, and whether the packages of a step are there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError

ENGINE_PACKAGES = {
    "train": ("torch", "transformers", "deepspeed", "peft", "safetensors"),
    "export": ("torch", "transformers", "peft", "safetensors"),
    "quantize": ("torch", "transformers", "peft", "safetensors", "gptqmodel"),
    "infer": ("torch", "transformers", "safetensors"),
    "parallelism": ("torch", "transformers", "deepspeed"),
}

_PROBE = """
import sys
from importlib.util import find_spec

print(*[name for name in sys.argv[1:] if find_spec(name) is None])
"""


def interpreter(config: Config) -> str:
    """Return the Python that runs the workers.

    Raises:
        UserError: when `launcher.python` is not a program.
    """
    chosen = config.launcher.python
    return sys.executable if chosen is None else _program(chosen, "launcher.python", holds="the engine")


def require_engine(step: str, python: str) -> None:
    """Check that the packages of a step can be imported by the interpreter that will run it.

    Raises:
        UserError: naming the missing packages and the extra that brings them.
    """
    missing = missing_packages(ENGINE_PACKAGES[step], python)
    if not missing:
        return
    pip = "pip" if python == sys.executable else f"{python} -m pip"
    raise UserError(
        f"The step {step!r} needs {', '.join(missing)}, which this environment lacks",
        where=python,
        do=f"Install the extra:  {pip} install 'llmsys-exp[{extra_of(missing)}]'",
    )


def sglang_interpreter(config: Config, python: str) -> str:
    """Return the Python that runs an SGLang of our own; `python` where no other is named.

    SGLang pins torch and transformers exactly, so it often lives in an environment of its own.

    Raises:
        UserError: when `inference.sglang.python` is not a program, or lacks SGLang.
    """
    settings = config.inference
    chosen = settings.sglang.python
    if chosen is not None:
        python = _program(chosen, "inference.sglang.python", holds="SGLang")
    if missing_packages(["sglang"], python, where="inference.sglang.python"):
        pip = "pip" if python == sys.executable else f"{python} -m pip"
        own = "" if chosen is not None else ", in an environment of its own whose bin/python is "
        own += "" if chosen is not None else "inference.sglang.python"
        raise UserError(
            f"inference.engine={settings.engine} needs sglang, which this environment lacks",
            where=python,
            why="" if chosen is not None else "It pins torch and transformers, so it rarely fits in here",
            do=f"Install the extra:  {pip} install 'llmsys-exp[sglang]'{own}; "
            "inference.engine=transformers runs anywhere",
        )
    return python


def extra_of(missing: Sequence[str]) -> str:
    """Return the extra of our package that brings the missing packages of a step."""
    if list(missing) == ["gptqmodel"]:
        return "gptq"
    return "train,gptq" if "gptqmodel" in missing else "train"


def require_mirrors(config: Config, python: str) -> None:
    """Check that the packages of `tracking.mirrors` are there.

    Raises:
        UserError: naming those that are missing and the extra that brings them.
    """
    names = [mirror.value for mirror in config.tracking.mirrors]
    missing = missing_packages(names, python) if names else []
    if missing:
        pip = "pip" if python == sys.executable else f"{python} -m pip"
        raise UserError(
            f"tracking.mirrors needs {', '.join(missing)}, which this environment lacks",
            where=python,
            do=f"Install the extra:  {pip} install 'llmsys-exp[track]', or leave it out",
        )


def missing_packages(names: Sequence[str], python: str, *, where: str = "launcher.python") -> list[str]:
    """Return those of `names` that the interpreter, named by the setting `where`, cannot find."""
    if python == sys.executable:
        return [name for name in names if find_spec(name) is None]
    missing, problem = _probe(tuple(names), python)
    if problem:
        raise UserError(f"{python} does not work: {problem}", where=where)
    return list(missing)


@lru_cache
def _probe(names: tuple[str, ...], python: str) -> tuple[tuple[str, ...], str]:
    """Return what an interpreter lacks, and why it does not work; once for all points of a sweep."""
    try:
        probe = subprocess.run(
            [python, "-c", _PROBE, *names], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), str(error)
    if probe.returncode != 0:
        return (), (probe.stderr.strip().splitlines()[-1:] or ["it does not start"])[0]
    return tuple(probe.stdout.split()), ""


def _program(chosen: str, setting: str, *, holds: str) -> str:
    path = Path(chosen).expanduser()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise UserError(
            f"{chosen} is not a Python interpreter",
            where=setting,
            do=f"Name the file bin/python of the environment that holds {holds}",
        )
    # not resolved: a link in a virtual environment says which packages there are
    return str(path.absolute())
