"""Plans for families that no formula knows, with the formula's play in the place of the simulation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmsys_exp.cli import plan as plan_verb
from llmsys_exp.cli.plan_answers import APART
from llmsys_exp.config.compose import compose_config
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, ConfigError, UserError
from llmsys_exp.jobs import gate
from llmsys_exp.plan import resolve
from llmsys_exp.plan.facts import worker_facts
from planner.units import GIB
from planner.verdict import reaching
from tests.unit.played import NUMEL, Played, model_in, stand_in


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return stand_in(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> list[str]:
    """Overrides that name a model of an unknown family."""
    return model_in(tmp_path)


def test_what_is_given_is_simulated_once(model: list[str], played: Played) -> None:
    given = ["training.micro_batch=2", "zero.stage=2", "offload=none", "training.gradient_checkpointing=true"]
    heard: list[str] = []
    plan = resolve(compose_config([*model, "hardware=a100_80gb", *given]), tell=heard.append)
    assert len(played.asked) == 1 and plan.forecast is not None and plan.verdict is not None
    assert heard[0] == "nobody_knows is not known to the formula: simulated"
    assert plan.forecast.notes[0] == heard[0] and plan.verdict.label == "fits"
    assert {choice.key for choice in plan.choices if choice.given} >= {"zero.stage", "training.micro_batch"}
    assert plan.config.zero.reduce_bucket_size == NUMEL and plan.step_s is None
    assert worker_facts(plan) == {}


@pytest.mark.parametrize(
    ("memory_gib", "stage", "recompute", "fits"),
    [(40, 2, False, True), (6.17, 2, True, True), (5.0, 3, True, True), (2.0, 3, True, False)],
)
def test_what_is_open_is_the_first_usual_way_that_fits(
    model: list[str], played: Played, memory_gib: float, stage: int, recompute: bool, fits: bool
) -> None:
    hardware = [
        "hardware=a100_80gb",
        "hardware.gpus_per_node=2",
        f"hardware.memory_gib={memory_gib}",
        "gate.margin_gib=0",
    ]
    config = compose_config([*model, *hardware, "training.micro_batch=4", "data.max_length=512"])
    plan = resolve(config)
    assert plan.verdict is not None and plan.verdict.fits is fits
    assert plan.config.training.gradient_checkpointing is recompute
    if fits:
        assert plan.config.zero.stage == stage
    assert len(played.asked) <= 4
    reason = next(choice.reason for choice in plan.choices if choice.key == "zero.stage")
    assert ("fits the" in reason) is fits and f"{len(played.asked)}" in reason


def test_the_largest_micro_batch_that_fits_is_found_with_few_simulations(
    model: list[str], played: Played
) -> None:
    given = ["hardware=a100_80gb", "hardware.memory_gib=15", "zero.stage=0", "offload=none"]
    given += ["training.gradient_checkpointing=false", "data.max_length=1024"]
    plan = resolve(compose_config([*model, *given]))
    found = int(plan.config.training.micro_batch)
    assert plan.verdict is not None and plan.verdict.label == "fits"
    assert 2 < found < 16 and len(played.asked) <= 4
    twice = resolve(compose_config([*model, *given, f"training.micro_batch={2 * found}"]))
    assert twice.verdict is not None and twice.verdict.label != "fits"


def test_without_a_simulation_nothing_is_forecast_and_the_gate_must_be_open(
    model: list[str], played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as refused:
        resolve(compose_config([*model, "hardware=cpu"]))
    wanted = "give gate=off training.gradient_checkpointing=true training.micro_batch=1."
    assert wanted in str(refused.value) and "without a GPU" in str(refused.value)
    given = [*model, "hardware=cpu", "training.micro_batch=1", "training.gradient_checkpointing=false"]
    plan = resolve(compose_config([*given, "gate=warn"]))
    assert plan.forecast is None and plan.config.zero.stage == 0
    assert "nothing says whether" in gate.check(plan)[0]
    assert not gate.check(resolve(compose_config([*given, "gate=off"])))
    assert plan_verb.run([*given, "gate=off", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["forecast"] is None and "without a GPU" in told["not_forecast"]
    assert plan_verb.run([*given, "gate=off"]) == 0
    assert capsys.readouterr().out.startswith("not forecast")


def test_the_verb_plans_them_and_says_so(
    model: list[str], played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*model, "hardware=a100_80gb", "training.micro_batch=1", "hardware.memory_gib=2"]
    assert plan_verb.run([*given, "zero=stage0", "offload=none", "--json"]) == EXIT_DOES_NOT_FIT
    written = capsys.readouterr()
    told = json.loads(written.out)
    assert told["verdict"]["fits"] is False and told["largest"] == []
    assert "nobody_knows is not known to the formula: simulated" in written.err
    with pytest.raises(ConfigError, match="not known to the formula tier"):
        plan_verb.plan_point(_request(given), _no_tables(), _formula())


def test_wrong_settings_are_refused_by_their_names(model: list[str], played: Played) -> None:
    with pytest.raises(ConfigError, match=r"offload\.param"):
        resolve(
            compose_config([*model, "hardware=a100_80gb", "zero.stage=0", "offload.param=cpu", "gate=off"])
        )


def test_a_band_reaches_to_what_another_tier_says(model: list[str], played: Played) -> None:
    plan = resolve(compose_config([*model, "hardware=a100_80gb", "training.micro_batch=1"]))
    assert plan.forecast is not None and plan.verdict is not None
    verdict, need = plan.verdict, plan.forecast.required_bytes
    assert reaching(verdict, need) == verdict and 0 < APART < 0.1
    wider = reaching(verdict, 79 * GIB)
    assert wider.band_bytes == (verdict.band_bytes[0], 79 * GIB) and wider.label == "tight" and wider.fits
    assert reaching(verdict, need // 2).band_bytes[0] == need // 2


def _request(overrides: list[str]) -> Any:
    return SimpleNamespace(
        config=compose_config(overrides), options=SimpleNamespace(json=False), overrides=overrides
    )


def _no_tables() -> Any:
    return SimpleNamespace(files={}, axes=None)


def _formula() -> Any:
    from llmsys_exp.cli.plan_tiers import TierOptions

    return TierOptions("formula")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tier", "formula", "--snapshot", "s.pickle"], "--snapshot goes with --tier simulate"),
        (["-m", "--snapshot", "s.pickle"], "--snapshot is of one job"),
        (["--snapshot", "s.json"], "Use .pickle"),
        (["--tier", "simulate", "--snapshot", "s.json"], "Use .pickle"),
        (["--tier", "simulate", "--timeline", "t.txt"], "Use .png"),
        (["--tier", "simulate", "--timeline", "nowhere/t.png"], "no such folder"),
        (["--tier", "simulate", "--snapshot", "there.pickle"], "This file exists"),
    ],
)
def test_files_of_a_simulation_are_refused_before_it(
    flags: list[str], said: str, model: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.pickle").touch()
    with pytest.raises(UserError, match=said):
        plan_verb.run([*model, "hardware=a100_80gb", *flags])
