"""Mirrors of the metrics: opened below the run folder, fed with numbers, and never in the way of training."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import Config, Mirror
from llmsys_exp.errors import UserError
from llmsys_exp.launch.interpreter import require_mirrors
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers.job import Job, Resolved
from llmsys_exp.workers.training.speed import SpeedMeter
from llmsys_exp.workers.training.trackers import make_trackers, numbers


def job_with(folder: Path, *mirrors: Mirror) -> Job:
    config = from_plain({})
    config.name, config.tracking.mirrors = "exp", list(mirrors)
    return Job(config, {}, Resolved(None, None, None, None, 1, "cpu"), RunPaths(folder))


def notes(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if '"note"' in line]


def test_numbers_of_nested_results_have_names() -> None:
    result = {"loss": {"first": 2, "last": 0.5}, "name": "x", "stopped": True, "none": None}
    assert numbers(result) == {"loss/first": 2.0, "loss/last": 0.5}


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.said: list[Any] = []
        self.summary = self
        self.breaks = False

    def init(self, **options: Any) -> FakeWandb:
        self.said.append(("init", options["project"], options["name"], options["dir"]))
        return self

    def Settings(self, **options: Any) -> dict[str, Any]:
        return options

    def log(self, figures: dict[str, float], step: int) -> None:
        if self.breaks:
            raise OSError("disk quota exceeded\nmore")
        self.said.append((step, figures))

    def update(self, figures: dict[str, float]) -> None:
        self.said.append(figures)

    def finish(self) -> None:
        self.said.append("finish")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_MODE", "WANDB_SILENT", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "kept")
    return fake


def test_a_mirror_gets_the_numbers_of_steps_and_the_result(tmp_path: Path, wandb: FakeWandb) -> None:
    [tracker] = make_trackers(job_with(tmp_path, Mirror.wandb, Mirror.wandb))
    tracker.log(3, {"train/loss": 1.5, "word": "x"})
    tracker.finish({"loss": {"last": 1.0}})
    opened = ("init", "llmsys", f"exp/{tmp_path.name}", str(tmp_path))
    assert wandb.said == [opened, (3, {"train/loss": 1.5}), {"loss/last": 1.0}, "finish"]


def test_a_mirror_that_fails_is_given_up_with_one_note(tmp_path, wandb, capsys) -> None:
    [tracker] = make_trackers(job_with(tmp_path, Mirror.wandb))
    wandb.breaks = True
    for step in range(3):
        tracker.log(step, {"train/loss": 1.0})
    tracker.finish({})
    [note] = notes(capsys)
    assert "wandb gets no further figures: OSError: disk quota exceeded" in note
    assert len(wandb.said) == 1


def test_a_mirror_that_cannot_be_opened_does_not_stop_training(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    [tracker] = make_trackers(job_with(tmp_path, Mirror.mlflow))
    tracker.log(1, {"train/loss": 1.0})
    assert len(notes(capsys)) == 1


@pytest.mark.parametrize("mirror", list(Mirror))
def test_a_missing_package_is_named_with_its_extra(mirror: Mirror, monkeypatch) -> None:
    monkeypatch.setattr("llmsys_exp.launch.interpreter.find_spec", lambda name: None)
    config = Config()
    require_mirrors(config, sys.executable)
    config.tracking.mirrors = [mirror]
    with pytest.raises(UserError, match=rf"needs {mirror.value}, .*llmsys-exp\[track\]"):
        require_mirrors(config, sys.executable)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs the extra `track`")
def test_tensorboard_writes_its_files(tmp_path: Path) -> None:
    [tracker] = make_trackers(job_with(tmp_path, Mirror.tensorboard))
    tracker.log(1, {"train/loss": 1.0})
    tracker.finish({"loss": 1.0})
    assert list((tmp_path / "tensorboard").glob("events.*"))


class Device:
    type = "cpu"


def test_speed_is_told_of_the_steps_after_the_first_two() -> None:
    meter = SpeedMeter({}, world_size=2, device=Device())
    for seconds in (10.0, 5.0, 1.0, 1.0):
        figures = meter.step(tokens=100, seconds=seconds)
    assert figures == {"tokens_per_s": 100.0}
    assert meter.summary() == {"tokens_per_s": 100.0}
    assert SpeedMeter({}, world_size=1, device=Device()).summary() == {}


def test_mfu_is_the_share_of_all_gpus_arithmetic(monkeypatch) -> None:
    monkeypatch.setattr("llmsys_exp.workers.training.speed._peak", lambda work, device: 1000.0)
    plan = {"work": {"flops_per_token": 10.0, "flops_per_pair": 0.5}}
    meter = SpeedMeter(plan, world_size=2, device=Device())
    # 100 x 10 + 400 x 0.5 = 1200 FLOPs in 2 s on two GPUs of 1000 a second
    assert meter.step(tokens=100, seconds=2.0, pairs=400)["mfu"] == pytest.approx(0.3)
