"""What is started: command lines, environment, DeepSpeed configuration, and the check for the engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.schema import Config, Device, Dtype, Optimizer
from llmsys_exp.errors import UserError
from llmsys_exp.launch import LAUNCHERS, TrainJob, get_launcher
from llmsys_exp.launch.ds_config import ds_config
from llmsys_exp.launch.environment import worker_env, worker_variables
from llmsys_exp.launch.interpreter import interpreter, missing_packages, require_engine
from llmsys_exp.launch.ports import free_port


def job(ranks: int = 2) -> TrainJob:
    return TrainJob(folder=Path("/runs/x"), python="/env/bin/python", device="cpu", ranks=ranks, port=12345)


def settled(**changes: Any) -> Config:
    """A configuration without `auto`, changed at dotted names written with two underscores."""
    config = Config()
    config.zero.stage, config.zero.reduce_bucket_size = 2, 1000
    config.training.micro_batch, config.training.grad_accum = 4, 3
    config.training.dtype = Dtype.bf16
    for key, value in changes.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section), name, value)
    return config


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_starts_the_training_worker(name: str) -> None:
    command = get_launcher(name).command(job(ranks=1))
    assert command[0] == "/env/bin/python"
    assert command[-2:] == ["llmsys_exp.workers.train", "/runs/x"]
    assert get_launcher(name).name == name


def test_the_deepspeed_runner_gets_ranks_and_port_and_no_local_rank() -> None:
    assert get_launcher("deepspeed").command(job()) == [
        *("/env/bin/python", "-m", "deepspeed.launcher.runner"),
        *("--hostfile", "/dev/null", "--num_gpus", "2", "--no_local_rank"),
        *("--master_addr", "127.0.0.1", "--master_port", "12345"),
        *("--module", "llmsys_exp.workers.train", "/runs/x"),
    ]


def test_the_local_launcher_refuses_more_than_one_rank() -> None:
    with pytest.raises(UserError, match="starts one process, and this job has 2 ranks"):
        get_launcher("local").command(job())


def test_an_unknown_launcher_is_named_with_the_closest() -> None:
    with pytest.raises(UserError, match="Did you mean deepspeed"):
        get_launcher("deepsped")


def test_the_cpu_environment_is_quiet_shares_cores_and_needs_no_activation() -> None:
    variables = worker_variables(
        settled(), {"PATH": "/usr/bin"}, python=sys.executable, device="cpu", ranks=10_000
    )
    assert variables["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["DS_ACCELERATOR"] == "cpu"
    assert variables["HF_HUB_OFFLINE"] == "1"


def test_what_the_user_has_set_stays() -> None:
    config = settled(launcher__env={"OMP_NUM_THREADS": "7"})
    variables = worker_variables(
        config, {"HF_HUB_OFFLINE": "0"}, python=sys.executable, device="cpu", ranks=1
    )
    assert "HF_HUB_OFFLINE" not in variables
    assert variables["OMP_NUM_THREADS"] == "7"


def test_variables_of_hydra_do_not_reach_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert "HYDRA_FULL_ERROR" not in worker_env(settled(), python=sys.executable, device="cpu", ranks=1)


def test_a_foreign_interpreter_sees_our_packages_and_nothing_else(tmp_path: Path) -> None:
    config = settled(paths__cache=str(tmp_path))
    variables = worker_variables(config, {}, python="/other/bin/python", device="cuda", ranks=1)
    assert sorted(child.name for child in Path(variables["PYTHONPATH"]).iterdir()) == [
        "llmsys_exp",
        "planner",
    ]


def test_missing_packages_are_found_here_and_elsewhere() -> None:
    names = ["json", "no_such_package_at_all"]
    assert missing_packages(names, sys.executable) == ["no_such_package_at_all"]
    assert missing_packages(names, str(Path(sys.executable).parent / "python3")) == ["no_such_package_at_all"]


def test_a_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmsys_exp.launch.interpreter.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs torch, .*pip install 'llmsys-exp\[train\]'"):
        require_engine("train", sys.executable)


def test_an_interpreter_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"is not a Python interpreter \(launcher\.python\)"):
        interpreter(settled(launcher__python="/no/such/python"))


def test_ports_are_free_and_differ() -> None:
    assert len({free_port() for _ in range(20)}) > 10


def test_batch_sizes_multiply_to_the_whole() -> None:
    result = ds_config(settled(), world_size=5, device="cuda")
    assert result["train_batch_size"] == 4 * 3 * 5
    assert result["train_micro_batch_size_per_gpu"] == 4
    assert result["gradient_accumulation_steps"] == 3


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_stage_gets_the_keys_it_reads(stage: int) -> None:
    zero = ds_config(settled(zero__stage=stage), world_size=2, device="cuda")["zero_optimization"]
    assert zero["stage"] == stage
    assert ("reduce_bucket_size" in zero) == (stage > 0)
    assert ("allgather_bucket_size" in zero) == (stage in (1, 2))
    assert ("stage3_max_live_parameters" in zero) == (stage == 3)


def test_nothing_has_to_be_compiled_on_the_cpu() -> None:
    config = settled(offload__optimizer=Device.cpu, training__optimizer=Optimizer.deepspeed_adamw)
    result = ds_config(config, world_size=1, device="cpu")
    assert result["optimizer"]["params"]["torch_adam"] is True
    assert result["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": False}


def test_deepspeed_picks_its_own_adam_on_a_gpu() -> None:
    config = settled(offload__optimizer=Device.cpu, training__optimizer=Optimizer.deepspeed_adamw)
    result = ds_config(config, world_size=1, device="cuda")
    assert result["optimizer"]["params"]["torch_adam"] is False
    assert "zero_force_ds_cpu_optimizer" not in result
    assert result["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


@pytest.mark.parametrize(
    ("dtype", "section"), [(Dtype.bf16, "bf16"), (Dtype.fp16, "fp16"), (Dtype.fp32, None)]
)
def test_the_compute_type_has_its_section(dtype: Dtype, section: str | None) -> None:
    result = ds_config(settled(training__dtype=dtype), world_size=1, device="cuda")
    assert {"bf16", "fp16"} & set(result) == ({section} if section else set())


def test_no_value_is_left_to_deepspeed() -> None:
    assert "auto" not in str(ds_config(settled(zero__stage=3), world_size=2, device="cuda"))


def test_a_file_that_the_system_cannot_run_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("no program")
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"does not work.*Exec format"):
        missing_packages(["sglang"], str(program), where="inference.sglang.python")
