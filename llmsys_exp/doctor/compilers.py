"""Compilers: DeepSpeed builds its operators, FusedAdam among them, when a job first needs them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.look import Look, output_of

_SAY = Reporter("compilers")
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
DEFAULT_HOME = Path("/usr/local/cuda")


def check(look: Look) -> Iterator[Finding]:
    """Look for what torch's builder of extensions calls."""
    needed = bool(look.gpus)
    path = os.pathsep.join([str(Path(look.python).parent), look.env.get("PATH", os.defpath)])
    for name, package in (("ninja", "pip install ninja"), (look.env.get("CXX", "g++"), "apt install g++")):
        found = shutil.which(name, path=path)
        said = f"{name}, which builds DeepSpeed's operators,"
        if found:
            yield _SAY.ok(Path(name).name, f"{name}: {found}")
        else:
            yield _SAY.either(needed, Path(name).name, f"{said} is missing", package)
    yield from _nvcc(look, path, needed)


def _nvcc(look: Look, path: str, needed: bool) -> Iterator[Finding]:
    given = look.env.get("CUDA_HOME") or look.env.get("CUDA_PATH")
    if given and not Path(given).is_dir():
        yield _SAY.either(needed, "CUDA_HOME", f"CUDA_HOME={given} is no folder", "unset CUDA_HOME")
        return
    found = shutil.which("nvcc", path=str(Path(given) / "bin") if given else path)
    if found is None and DEFAULT_HOME.is_dir():
        found = shutil.which("nvcc", path=str(DEFAULT_HOME / "bin"))
    if found is None:
        said = (
            "nvcc is missing: DeepSpeed builds FusedAdam with it (training.optimizer=torch_adamw needs none)"
        )
        if needed:
            yield _SAY.problem("nvcc", said, "install the CUDA toolkit and export CUDA_HOME=FOLDER")
        else:
            yield _SAY.ok("nvcc", "No nvcc, and no GPU that would need it")
        return
    match = _RELEASE.search(output_of([found, "--version"]) or "")
    release, built = (f"{match[1]}.{match[2]}" if match else None), look.told.get("cuda")
    if match and built and match[1] != str(built).partition(".")[0]:
        said = f"nvcc is of CUDA {release} and torch of {built}: DeepSpeed refuses to build its operators"
        yield _SAY.either(
            needed, "nvcc", said, f"export CUDA_HOME=FOLDER of a CUDA {str(built).partition('.')[0]}"
        )
    else:
        yield _SAY.ok("nvcc", f"nvcc of CUDA {release or 'unknown'}: {found}")
