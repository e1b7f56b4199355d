"""The environment of a worker: quiet libraries, threads, search paths."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from llmsys_exp.config.schema import Config, Device
from llmsys_exp.errors import UserError
from llmsys_exp.evidence.secrets import LEFT_OUT
from llmsys_exp.launch.gpus import VISIBLE

MOST_GPU_THREADS = 8
_STEERING = ("NCCL_", "TORCH_", "HF_", "DS_", "LD_LIBRARY_PATH", "CUDA_HOME", "GLOO_")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")

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

DETERMINISTIC = {
    # cuBLAS with one workspace a stream; torch takes this one or a smaller, slower one (`:16:8`)
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "FLASH_ATTENTION_DETERMINISTIC": "1",  # read by transformers for flash_attention_2
    # else NCCL may choose another way, with another order of sums, at each start
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}
"""What libraries read when they start, for `training.deterministic`."""


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
    return {**ours, **{key: value for key, value in config.launcher.env.items() if value != LEFT_OUT}}


def check_secrets(config: Config) -> None:
    """Refuse a configuration from a record whose secrets nobody gave again.

    Raises:
        UserError: naming the variables.
    """
    missing = [
        key for key, value in config.launcher.env.items() if value == LEFT_OUT and key not in os.environ
    ]
    if missing:
        raise UserError(
            f"{', '.join(missing)} was left out of the record of that run as a secret",
            where="launcher.env",
            do=f"Set it before you start: export {missing[0]}=...",
        )


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


def _gpu_variables(config: Config, env: Mapping[str, str], ranks: int) -> dict[str, str]:
    # launcher.gpus counts as nvidia-smi does; CUDA by itself would put the fastest first
    ours = {} if "CUDA_DEVICE_ORDER" in env else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if "OMP_NUM_THREADS" not in env:
        # the offloaded Adam runs on all cores; else the host only prepares batches and starts kernels
        offloads = config.offload.optimizer not in (Device.none, Device.auto)
        ours["OMP_NUM_THREADS"] = str(_threads(ranks, most=None if offloads else MOST_GPU_THREADS))
    if config.training.expandable_segments is True:
        ours["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if config.training.deterministic:
        ours |= DETERMINISTIC
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
