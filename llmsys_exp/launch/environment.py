"""The environment of a worker: interpreter, quiet libraries, threads, and whether the engine is there."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from llmsys_exp.config.schema import Config, Device
from llmsys_exp.errors import UserError
from llmsys_exp.launch.gpus import VISIBLE

ENGINE_PACKAGES = {
    "train": ("torch", "transformers", "deepspeed", "peft", "safetensors"),
    "export": ("torch", "transformers", "peft", "safetensors"),
    "quantize": ("torch", "transformers", "peft", "safetensors", "gptqmodel"),
    "infer": ("torch", "transformers", "safetensors"),
    "parallelism": ("torch", "transformers", "deepspeed"),
}

MOST_GPU_THREADS = 8
_STEERING = ("NCCL_", "TORCH_", "HF_", "DS_", "LD_LIBRARY_PATH", "CUDA_HOME", "GLOO_")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_PORTS = (20_000, 32_768)
_PORT_TRIES = 100

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


def sglang_interpreter(config: Config, python: str) -> str | None:
    """Return the Python that runs SGLang; None where the engine is none that we start.

    SGLang pins torch and transformers exactly, so it often lives in an environment of its own.

    Raises:
        UserError: when `inference.sglang.python` is not a program, or lacks SGLang.
    """
    settings = config.inference
    if settings.engine == "transformers" or (
        settings.engine == "sglang_server" and settings.server.url is not None
    ):
        return None
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
    probe = subprocess.run(
        [python, "-c", _PROBE, *names], capture_output=True, text=True, timeout=60, check=False
    )
    if probe.returncode != 0:
        return (), (probe.stderr.strip().splitlines()[-1:] or ["it does not start"])[0]
    return tuple(probe.stdout.split()), ""


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
        ours["OMP_NUM_THREADS"] = str(_threads(ranks, most=None))
        ours["DS_ACCELERATOR"] = "cpu"
        ours[VISIBLE] = ""
    else:
        ours |= _gpu_variables(config, env, ranks)
    if python != sys.executable:
        ours["PYTHONPATH"] = _with_our_packages(config, env)
    return {**ours, **config.launcher.env}


def variables_for_others(
    config: Config, env: Mapping[str, str], *, python: str, device: str, ranks: int
) -> dict[str, str]:
    """Return what other machines get: what we add, and what libraries are steered with, but no secret."""
    steering = {
        key: value
        for key, value in env.items()
        if key.startswith(_STEERING) and not any(word in key for word in _SECRET)
    }
    # the machines are alike, but a remote shell may not read the files that set the search path
    path = {"PATH": env.get("PATH", os.defpath)}
    return steering | worker_variables(config, path, python=python, device=device, ranks=ranks)


def free_port() -> int:
    """Return a TCP port that is free now on this machine, and that no outgoing connection will be given."""
    picker = random.SystemRandom()  # the user's seed must not make two jobs agree
    low, high = _PORTS
    first_given_out = _first_ephemeral_port()
    if low < first_given_out < high:
        high = first_given_out
    for _ in range(_PORT_TRIES):
        port = picker.randrange(low, high)
        if is_free(port):
            return port
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether a TCP port can be listened on now."""
    with socket.socket() as listener:
        # a port whose last connections are still closing is free for a listener
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


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


def _first_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        return int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return _PORTS[1]


def _gpu_variables(config: Config, env: Mapping[str, str], ranks: int) -> dict[str, str]:
    # launcher.gpus counts as nvidia-smi does; CUDA by itself would put the fastest first
    ours = {} if "CUDA_DEVICE_ORDER" in env else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if "OMP_NUM_THREADS" not in env:
        # the offloaded Adam runs on all cores; else the host only prepares batches and starts kernels
        offloads = config.offload.optimizer not in (Device.none, Device.auto)
        ours["OMP_NUM_THREADS"] = str(_threads(ranks, most=None if offloads else MOST_GPU_THREADS))
    if config.training.expandable_segments is True:
        ours["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return ours


def _threads(ranks: int, *, most: int | None) -> int:
    """Cores of one rank: without a limit every rank takes all of them and they fight."""
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    return share if most is None else min(share, most)


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
