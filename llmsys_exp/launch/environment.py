"""The environment of a worker: interpreter, quiet libraries, threads, and whether the engine is there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError

ENGINE_PACKAGES = {
    "train": ("torch", "transformers", "deepspeed", "peft", "safetensors"),
    "export": ("torch", "transformers", "peft", "safetensors"),
    "infer": ("torch", "transformers", "safetensors"),
}

_PROBE = """
import sys
from importlib.util import find_spec

print(*[name for name in sys.argv[1:] if find_spec(name) is None])
"""

# Each line silences chatter that is not about the user's job; a variable the user has set stays as it is.
_QUIET = {
    "DEEPSPEED_LOG_LEVEL": "warning",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::DeprecationWarning",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}


def interpreter(config: Config) -> str:
    """Return the Python that runs the workers.

    Raises:
        UserError: when `launcher.python` is not a program.
    """
    chosen = config.launcher.python
    if chosen is None:
        return sys.executable
    path = Path(chosen).expanduser()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise UserError(
            f"{chosen} is not a Python interpreter",
            where="launcher.python",
            do="Name the file bin/python of the environment that holds the engine",
        )
    return str(path.absolute())


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
        do=f"Install the extra:  {pip} install 'llmsys-exp[train]'",
    )


def missing_packages(names: Sequence[str], python: str) -> list[str]:
    """Return those of `names` that the interpreter cannot find."""
    if python == sys.executable:
        return [name for name in names if find_spec(name) is None]
    probe = subprocess.run(
        [python, "-c", _PROBE, *names], capture_output=True, text=True, timeout=60, check=False
    )
    if probe.returncode != 0:
        last = probe.stderr.strip().splitlines()[-1:] or ["it does not start"]
        raise UserError(f"{python} does not work: {last[0]}", where="launcher.python")
    return probe.stdout.split()


def worker_env(config: Config, *, python: str, device: str, ranks: int) -> dict[str, str]:
    """Return the whole environment of a worker."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HYDRA_")}
    return {**env, **worker_variables(config, env, python=python, device=device, ranks=ranks)}


def worker_variables(
    config: Config, env: Mapping[str, str], *, python: str, device: str, ranks: int
) -> dict[str, str]:
    """Return the variables we add to `env`, the ones from `launcher.env` last."""
    ours = {key: value for key, value in _QUIET.items() if key not in env}
    # ninja and compilers of that environment must be found although nobody activated it.
    ours["PATH"] = os.pathsep.join([str(Path(python).parent), env.get("PATH", os.defpath)])
    if device == "cpu":
        # Without this every rank takes all cores and they fight.
        ours["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks))
        ours["DS_ACCELERATOR"] = "cpu"
        ours["CUDA_VISIBLE_DEVICES"] = ""
    elif config.training.expandable_segments is True:
        ours["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if python != sys.executable:
        ours["PYTHONPATH"] = _with_our_packages(config, env)
    return {**ours, **config.launcher.env}


def free_port() -> int:
    """Return a TCP port that is free now on this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _with_our_packages(config: Config, env: Mapping[str, str]) -> str:
    """Let a foreign interpreter import our two packages and nothing else of this environment."""
    folder = Path(config.paths.cache).expanduser().absolute() / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).resolve().parents[2]
    for name in ("llmsys_exp", "planner"):
        link = folder / name
        if link.is_symlink() and link.readlink() != source / name:
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(source / name)
    return os.pathsep.join(part for part in (str(folder), env.get("PYTHONPATH", "")) if part)
