"""Offload to nvme: refused with one message where it cannot work, and each run in a folder of its own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmsys_exp.config.plain import from_plain
from llmsys_exp.errors import UserError
from llmsys_exp.launch.ds_config import ds_config
from llmsys_exp.launch.nvme import drop_swap, keep_apart, require_nvme, swap_folder

FORECAST = SimpleNamespace(disk={"offloaded optimizer": 1024, "result": 10**18})


def offloaded(folder: Path | str | None, optimizer: str = "nvme", param: str = "none"):
    return from_plain(
        {
            "offload": {"optimizer": optimizer, "param": param, "nvme_path": folder and str(folder)},
            "zero": {"stage": 3, "reduce_bucket_size": 1000},
            "training": {"dtype": "bf16", "micro_batch": 1, "grad_accum": 1, "optimizer": "deepspeed_adamw"},
        }
    )


def compiler(folder: Path, code: str) -> dict[str, str]:
    """An environment whose C++ compiler does what the shell code says."""
    program = folder / "compiler"
    program.write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
    program.chmod(0o755)
    return {**os.environ, "CXX": str(program)}


def test_a_compiler_without_libaio_is_explained_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs libaio.*Install the package libaio-dev") as refused:
        require_nvme(offloaded(tmp_path), FORECAST, sys.executable, compiler(tmp_path, "exit 1"))
    assert "\n" not in str(refused.value)


def test_what_is_compiled_is_a_program_that_uses_libaio(tmp_path: Path) -> None:
    env = compiler(tmp_path, f'cat "$1" > {tmp_path}/seen; echo "$@" >> {tmp_path}/seen')
    require_nvme(offloaded(tmp_path), FORECAST, sys.executable, env)
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert "#include <libaio.h>" in seen and "-laio" in seen


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "CXX": "/no/such/compiler"}
    with pytest.raises(UserError, match=r"C\+\+ compiler.*g\+\+"):
        require_nvme(offloaded(tmp_path), FORECAST, sys.executable, env)


def test_nothing_is_asked_of_a_job_that_stays_off_the_disk(tmp_path: Path) -> None:
    config = offloaded(None, optimizer="cpu")
    require_nvme(config, FORECAST, "/no/such/python", {})
    assert swap_folder(config, tmp_path) is None


def test_a_disk_that_is_too_small_and_a_folder_that_is_a_file_are_refused(tmp_path: Path) -> None:
    env = compiler(tmp_path, "exit 0")
    huge = SimpleNamespace(disk={"offloaded optimizer": 10**17, "offloaded weights": 10**17})
    with pytest.raises(UserError, match=r"writes \d+\.\d+ GiB and \d+\.\d+ are free.*offload\.nvme_path"):
        require_nvme(offloaded(tmp_path / "new" / "folder"), huge, sys.executable, env)
    with pytest.raises(UserError, match="compiler is not a folder"):
        require_nvme(offloaded(tmp_path / "compiler"), FORECAST, sys.executable, env)


def test_two_runs_never_share_a_folder_and_leave_none(tmp_path: Path) -> None:
    config = offloaded(tmp_path)
    runs = [tmp_path / "outputs" / "mine" / name for name in ("one", "two")]
    folders = [swap_folder(config, run) for run in runs]
    assert len(set(folders)) == 2 and all(folder.parent == tmp_path for folder in folders)
    settings = keep_apart(ds_config(config, world_size=1, device="cuda"), folders[0])
    assert settings["zero_optimization"]["offload_optimizer"]["nvme_path"] == str(folders[0])
    for folder in folders:
        (folder / "zero_stage_3").mkdir(parents=True)
    drop_swap(config, runs[0])
    assert not folders[0].exists() and folders[1].exists()


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_real_compiler_decides(tmp_path: Path) -> None:
    """Header and library made here stand for the package; without them nothing is found."""
    (tmp_path / "libaio.h").write_text(
        'typedef void *io_context_t; extern "C" int io_setup(int, io_context_t *);', encoding="utf-8"
    )
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libaio.h").write_text("#error hidden", encoding="utf-8")
    with pytest.raises(UserError, match="libaio"):
        require_nvme(offloaded(tmp_path), FORECAST, sys.executable, {**os.environ, "CPATH": str(broken)})
    source = tmp_path / "aio.cpp"
    source.write_text(
        '#include "libaio.h"\nint io_setup(int, io_context_t *) { return 0; }', encoding="utf-8"
    )
    os.spawnlp(os.P_WAIT, "c++", "c++", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libaio.so"))
    env = {**os.environ, "CPATH": str(tmp_path), "LIBRARY_PATH": str(tmp_path)}
    require_nvme(offloaded(tmp_path), FORECAST, sys.executable, env)
