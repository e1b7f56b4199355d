"""What jobs of other Hydra programs get of a machine, and what cannot be started in another process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher

from llmsys_exp.sweeps.launcher import child, options
from llmsys_exp.sweeps.launcher.options import LaunchOptions, share_of
from llmsys_exp.sweeps.running.lease import Leases, Slot

CARDS = [Slot(f"gpu-{number}", str(number)) for number in range(4)]
CORES = tuple(Slot(f"core-{number}", str(number)) for number in range(8))


@pytest.fixture(params=["with GPUs", "without"])
def has_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bool:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = request.param == "with GPUs"
    monkeypatch.setattr(options, "leases_here", lambda: Leases(CARDS if found else CORES))
    monkeypatch.setattr(options, "core_slots", lambda: CORES)
    return found


def shared(**asked: Any) -> tuple[str, int, int, bool]:
    share = share_of(LaunchOptions(**asked))
    return share.leases.slots[0].name, share.slots, share.jobs, share.hides_gpus


def test_jobs_get_a_gpu_each_or_the_cores_in_turn(has_gpus: bool):
    assert shared() == (("gpu-0", 1, 4, False) if has_gpus else ("core-0", 8, 1, False))
    assert shared(jobs=3) == (("gpu-0", 1, 3, False) if has_gpus else ("core-0", 2, 3, False))
    assert shared(gpus_per_job=0, jobs=16) == ("core-0", 1, 16, has_gpus), "a job without GPUs sees none"
    if has_gpus:
        assert shared(gpus_per_job=2) == ("gpu-0", 2, 2, False)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"gpus_per_job": 5}, "gpus_per_job=5: a job would never start"),
        ({"gpus_per_job": -1}, "gpus_per_job=-1 is below 0"),
        ({"jobs": 0}, "jobs=0 is below 1"),
        ({"timeout_s": 0.0}, "timeout_s=0.0 is no time above 0"),
        ({"timeout_s": float("nan")}, "is no time above 0"),
    ],
    ids=str,
)
def test_what_can_never_be_is_refused_before_anything_starts(
    has_gpus: bool, asked: dict[str, Any], says: str
):
    with pytest.raises(CompactHydraException, match=says):
        share_of(LaunchOptions(**asked))


def plain(config: Any) -> None:
    raise NotImplementedError


@functools.wraps(plain)
def decorated(config: Any) -> None:
    raise NotImplementedError


raw, plain = plain, decorated  # type: ignore[assignment]


def test_function_is_found_below_its_decorators():
    task = child._find(raw)
    assert (task.name, task.depth) == ("plain", 1)
    assert task.find() is raw


def test_function_that_no_other_process_would_find_is_refused():
    with pytest.raises(CompactHydraException, match="has to stand at the top of a module"):
        child._find(lambda config: None)
    with pytest.raises(CompactHydraException, match="top of a module"):
        child._find(functools.partial(raw, None))


def test_hydra_finds_the_launcher():
    names = {plugin.__name__ for plugin in Plugins.instance().discover(Launcher)}
    assert "LeaseLauncher" in names
