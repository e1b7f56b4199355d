"""Offload to a disk: what DeepSpeed's asynchronous reads and writes need, and a folder of each run's own.

Read in DeepSpeed 0.19.8: `ops/op_builder/async_io.py` compiles the operator when a job first needs it,
against libaio's header and library; `runtime/swap_tensor` writes to `zero_stage_3` below `nvme_path`, empties
what another job wrote there, and never removes its own files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import planner
from llmsys_exp.config.schema import Config, Device
from llmsys_exp.errors import UserError
from planner.units import gib

SECTIONS = ("offload_optimizer", "offload_param")
OFFLOADED = ("offloaded optimizer", "offloaded weights")
"""Uses of `planner.Forecast.disk` that go to the folder."""

# The compiler's own search paths hold for DeepSpeed's build too; CFLAGS and LDFLAGS do not reach it.
_PROBE = """
import glob, os, shlex, subprocess, sys, tempfile
from importlib.util import find_spec

found = find_spec("deepspeed")
for folder in found.submodule_search_locations if found else ():
    if glob.glob(os.path.join(folder, "ops", "aio", "async_io_op*")):
        print("ready")
        sys.exit()
source = "#include <libaio.h>\\nint main() { io_context_t context = 0; return io_setup(1, &context); }\\n"
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "probe.cpp")
    with open(file, "w") as stream:
        stream.write(source)
    command = [*shlex.split(os.environ.get("CXX", "c++")), file, "-laio", "-o", os.path.join(folder, "probe")]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        print("compiler")
    else:
        print("ready" if done.returncode == 0 else "libaio")
"""


def uses_nvme(config: Config) -> bool:
    """Whether a job keeps anything on a disk while it trains."""
    return Device.nvme in (config.offload.optimizer, config.offload.param)


def require_nvme(config: Config, forecast: planner.Forecast, python: str, env: Mapping[str, str]) -> None:
    """Check that DeepSpeed can build its asynchronous I/O, and that the folder can take what goes there.

    Raises:
        UserError: naming the package to install, or what is wrong with `offload.nvme_path`.
    """
    if not uses_nvme(config):
        return
    probe = subprocess.run(
        [python, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=False, env=dict(env)
    )
    found = probe.stdout.strip()
    if found == "compiler":
        raise UserError(
            "Offload to nvme needs a C++ compiler, and there is none",
            why="DeepSpeed compiles its asynchronous I/O when a job first uses it",
            do="Install the package g++ (gcc-c++ on Red Hat), or use offload.optimizer=cpu",
        )
    if found == "libaio":
        raise UserError(
            "Offload to nvme needs libaio, which the compiler does not find",
            why="DeepSpeed builds its asynchronous I/O on it",
            do="Install the package libaio-dev (libaio-devel on Red Hat, libaio on Arch); "
            "where it lies elsewhere, name its folders in CPATH, LIBRARY_PATH and LD_LIBRARY_PATH",
        )
    if found != "ready":
        raise UserError(f"{python} does not work: {probe.stderr.strip()[-200:]}", where="launcher.python")
    _check_folder(Path(str(config.offload.nvme_path)), forecast)


def _check_folder(folder: Path, forecast: planner.Forecast) -> None:
    """Refuse a folder that cannot be made or written, or that lies on too small a disk."""
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "cannot be written to" if existing.is_dir() else "is not a folder"
        raise UserError(f"{existing} {what}", where=f"offload.nvme_path={folder}", do="Name another folder")
    need, free = sum(forecast.disk.get(use, 0) for use in OFFLOADED), shutil.disk_usage(existing).free
    if need > free:
        raise UserError(
            f"Offload to nvme writes {gib(need):.2f} GiB and {gib(free):.2f} are free",
            where=f"offload.nvme_path={folder}",
            do="Name a folder on a larger disk, or make room",
        )


def swap_folder(config: Config, run: Path) -> Path | None:
    """Return where a run keeps what it offloads: two runs in one folder would empty each other's files."""
    if not uses_nvme(config):
        return None
    return Path(str(config.offload.nvme_path)) / f"llmsys-{run.parent.name}-{run.name}"


def keep_apart(settings: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Name the run's own folder in what DeepSpeed gets."""
    zero = settings["zero_optimization"]
    for name in SECTIONS:
        if zero.get(name, {}).get("device") == Device.nvme.name:
            zero[name]["nvme_path"] = str(folder)
    return settings


def drop_swap(config: Config, run: Path) -> None:
    """Remove what a run offloaded: it is of no use once training has ended, however it ended."""
    folder = swap_folder(config, run)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
