"""Dry runs on DeepSpeed's real engine: one rank on the CPU, the others not there."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from forked import run_forked
from tiny_jobs import make_job, make_model

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.plain import from_plain
from llmsys_exp.dryrun import start
from llmsys_exp.dryrun.checks import DryAsk
from llmsys_exp.dryrun.held import held_by_formula
from llmsys_exp.dryrun.outcome import Outcome
from llmsys_exp.dryrun.run import run_dry
from llmsys_exp.plan import resolve
from llmsys_exp.report.console import Console
from llmsys_exp.report.tier_text import dryrun_rows

pytestmark = pytest.mark.engine

FULL = {"method__kind": "full"}
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "full-0-of-2": (0, 2, {"zero__stage": 0, **FULL}),
    "full-1-of-64": (63, 64, {"zero__stage": 1, **FULL}),
    "full-2-of-2": (0, 2, {"zero__stage": 2, **FULL}),
    "full-3-of-2": (0, 2, {"zero__stage": 3, **FULL}),
    "lora-3-of-64": (63, 64, {"zero__stage": 3}),
}
"""Rank, world size, settings."""
LENGTH, STEPS = 16, 2
NEAR_BYTES = 4096
"""Scalars, seeds and the batch made ahead, of which the emulation counts none."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every case, dry-run."""
    base = tmp_path_factory.mktemp("dryrun")
    make_model(base / "model")
    made = {}
    for name, (rank, world_size, settings) in CASES.items():
        shared = {"training__dtype": "bf16", "model__weights": "random", "data__max_length": LENGTH}
        made[name] = make_job(base / name, base / "model", world_size=world_size, **shared, **settings).folder
        (made[name] / "dryrun.json").write_text(json.dumps({"rank": rank, "steps": STEPS}), encoding="utf-8")
        done = run_forked("llmsys_exp.workers.dryrun", made[name])
        assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.mark.parametrize("name", CASES)
def test_one_rank_holds_what_the_formula_says_without_the_others(folders: dict[str, Path], name: str) -> None:
    rank, world_size, _ = CASES[name]
    outcome = Outcome.read(json.loads((folders[name] / "results/dryrun.json").read_text()))
    assert outcome.survived and outcome.oom is None
    assert (outcome.rank, outcome.world_size, len(outcome.step_s)) == (rank, world_size, STEPS)
    held = _held_by_formula(folders[name], world_size)
    for phase in ("engine start", "backward", "step"):
        assert abs(outcome.held_bytes(phase) - held[phase]) < NEAR_BYTES, phase
    # what the process took is more than what its tensors did
    assert outcome.host_peak_bytes > outcome.held_bytes("forward") > outcome.held_bytes("backward")
    assert outcome.peak_allocated_bytes is None  # a CPU does not tell


def _held_by_formula(folder: Path, world_size: int) -> dict[str, int]:
    """What is held at the end of each phase by the emulation."""
    config = from_plain(json.loads((folder / "job.json").read_text())["config"])
    config.model.path, config.model.entry = str(folder.parent / "model"), None
    config.hardware.gpu, config.hardware.gpus_per_node = "cpu", world_size
    return held_by_formula(config)


def test_a_plan_goes_to_the_worker_and_comes_back(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forked(command: list[str], *_: Any, **__: Any) -> None:
        done = run_forked(command[2], command[3])
        assert done.returncode == 0, done.stdout + done.stderr

    monkeypatch.setattr(start, "run_shown", forked)
    model = next(iter(folders.values())).parent / "model"
    settings = [
        "model=local",
        f"model.path={model}",
        "hardware=cpu",
        "hardware.gpus_per_node=4",
        "data.train=x",
    ]
    settings += [
        "zero.stage=3",
        "method=lora",
        "offload=none",
        "data.max_length=16",
        "training.micro_batch=1",
    ]
    plan = resolve(compose_config([*settings, "training.dtype=bf16", "hardware.host_memory_gib=64"]))
    dry = run_dry(plan, DryAsk(rank=3), Console(io.StringIO()))
    assert (dry.outcome.survived, dry.outcome.rank, dry.outcome.world_size) == (True, 3, 4)
    figures = {name: (formula, found) for name, formula, found in dryrun_rows(dry)}
    assert list(figures) == [f"{name}, at its end" for name in ("load", "engine start", "backward", "step")]
    formula, found = figures["step, at its end"]
    assert found == pytest.approx(formula, abs=NEAR_BYTES)
