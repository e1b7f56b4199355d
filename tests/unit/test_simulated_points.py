"""Families that no formula knows where many settings are looked at: sweeps, their gate, recommendations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from llmsys_exp.cli import plan as plan_verb
from llmsys_exp.cli import recommend as recommend_verb
from llmsys_exp.config.compose import compose_config
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, DoesNotFit, UserError
from llmsys_exp.plan import serving_call
from llmsys_exp.plan.serving_call import plan_call
from llmsys_exp.plan.serving_case import Demand
from llmsys_exp.plan.serving_work import measure_work
from llmsys_exp.sweeps.gate import simulated
from llmsys_exp.sweeps.gate.gate import gate_points, reason
from llmsys_exp.sweeps.gate.outcomes import Outcomes
from llmsys_exp.sweeps.points.find import points_of
from llmsys_exp.sweeps.points.point import Gated, Points
from planner.errors import NotSimulated
from planner.serving.forecast import GenerationForecast
from planner.units import GIB
from tests.unit.played import SHAPE, Played, model_in, stand_in

GIVEN = (
    "hardware=a100_80gb", "zero.stage=0", "offload=none", "training.gradient_checkpointing=false",
    "data.max_length=128",
)  # fmt: skip


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(simulated, "free_bytes", lambda outputs: 1000 * GIB)
    return stand_in(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> list[str]:
    return model_in(tmp_path)


def points(base: list[str], *swept: str) -> Points:
    return points_of(base, swept, None, "train")


def gate(found: Points, *, policy: str | None = "skip") -> tuple[list[Gated], list[str]]:
    heard: list[str] = []
    return gate_points(found, verb="train", policy=policy, tell=heard.append), heard


def test_points_are_simulated_each_case_once_and_fail_alone(
    model: list[str], played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = ["training.micro_batch=1", "hardware=cpu,a100_80gb", "gate.margin_gib=0,75"]
    assert plan_verb.run(["-m", *model, *GIVEN[1:], *swept]) == 2
    written = capsys.readouterr()
    assert len(played.asked) == 1  # what a card holds changes no case
    assert ": 1 fits, 1 does not fit, 2 failed." in written.out and "1 simulation." in written.out
    assert "without a GPU" in written.err


def test_the_gate_simulates_what_plans_alike_once_and_says_how_far_it_is(
    model: list[str], played: Played
) -> None:
    found = points([*model, *GIVEN, "hardware.memory_gib=12"], "training.micro_batch=1,64", "seed=1,2")
    estimated = Outcomes("train", most_plays=0).of(found.resolved)  # what a search begins with
    assert [one.figures["label"] for one in estimated] == ["near the limit"] * 4 and not played.asked
    gated, heard = gate(found)
    assert [one.verdict for one in gated] == ["runs", "runs", "skipped", "skipped"]
    assert len(played.asked) == 2
    assert heard == [
        "Simulating 1 of 2: training.micro_batch=1",
        "Simulating 2 of 2: training.micro_batch=64",
    ]
    figures = gated[0].figures
    assert figures["tier"] == "simulate" and figures["device_gib"] > figures["needed_gib"] > 4
    assert figures["host_gib"] > 0
    assert "GiB, and a GPU has" in reason(gated[2])


def test_a_point_without_a_forecast_needs_an_open_gate(model: list[str], played: Played) -> None:
    on_cpu = [*model, "hardware=cpu", "training.gradient_checkpointing=false", "data.max_length=64"]
    found = points(on_cpu, "training.micro_batch=1,auto")
    (skipped, unready), heard = gate(found)
    assert skipped.verdict == unready.verdict == "skipped" and "without a GPU" in reason(skipped)
    assert "give gate=off training.micro_batch=1" in reason(unready) and not heard
    (runs, unready), _ = gate(found, policy="warn")
    assert runs.verdict == "tight" and runs.figures["label"] == "not forecast"
    assert unready.verdict == "skipped"  # its batch would be open
    with pytest.raises(DoesNotFit, match="without a GPU"):
        gate(found, policy=None)


def test_main_memory_and_disk_count_for_a_point(
    model: list[str], played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "free_bytes", lambda outputs: 1)
    small = [*model, *GIVEN, "training.micro_batch=1"]
    (one, other), _ = gate(points(small, "hardware.host_memory_gib=1,64"))
    assert one.figures["where"] == "host" and "main memory has" in reason(one)
    assert other.figures["where"] == "disk" and "the disk has" in reason(other)


def test_the_usual_ways_that_fit_are_recommended(
    model: list[str], played: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*model, "hardware=a100_80gb", "hardware.memory_gib=14", "data.max_length=512"]
    assert recommend_verb.run([*asked, "--best=2"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines() if line.startswith(("  1 ", "  2 "))]
    assert [row[:3] for row in rows] == [["1", "0", "none"], ["2", "0", "none"]]
    assert [row[3] for row in rows] == ["no", "yes"]
    assert "Speed is not forecast" in text and f"{len(played.asked)} simulations" in text
    assert recommend_verb.run([*asked, "hardware.memory_gib=2", "--json"]) == EXIT_DOES_NOT_FIT
    (told,) = json.loads(capsys.readouterr().out)["methods"]
    assert told["answers"] == [] and told["smallest"]["verdict"] == "does not fit"


def test_what_is_recommended_is_saved_as_an_experiment(
    model: list[str], played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "way.yaml"
    monkeypatch.setattr("llmsys_exp.config.experiment_file.experiment_path", lambda name: file)
    asked = [*model, "hardware=a100_80gb", "data.max_length=128", "training.micro_batch=4"]
    assert recommend_verb.run([*asked, "--best=1", "--save", "way", "--json"]) == 0
    written = file.read_text()
    assert "micro_batch: 4" in written and "gradient_checkpointing: false" in written
    assert "the first of the usual ways" in written


def test_a_forecast_that_is_kept_holds_no_events_and_says_the_same() -> None:
    shape = {**SHAPE, "model_type": "llama"}
    case = planner.parse_training_case(
        {"hf_config": shape, "method": "full", "seq_len": 128, "micro_batch": 1}
    )
    full = planner.forecast_training(case)
    kept = full.kept()
    assert full.events and not kept.events
    assert kept.to_dict() == full.to_dict()
    for limit in (kept.required_bytes, kept.required_bytes - 1, kept.peak_reserved_bytes):
        assert kept.survives(limit) == full.survives(limit)
    with pytest.raises(ValueError, match="left out"):
        kept.reserved_under(full.peak_allocated_bytes)


def call(peak_bytes: int, budget_bytes: int) -> GenerationForecast:
    sizes = dict.fromkeys(
        ("weights_bytes", "kv_bytes_per_token", "kv_cache_bytes", "kv_growth_bytes",
         "prefill_activations_bytes", "logits_bytes"), 0
    )  # fmt: skip
    label = "fits" if peak_bytes <= budget_bytes else "does not fit"
    return GenerationForecast(
        **sizes, peak_allocated_bytes=peak_bytes, device_used_bytes=peak_bytes, phase="prefill",
        budget_bytes=budget_bytes, fits=label == "fits", label=label,
    )  # fmt: skip


@pytest.mark.parametrize(("each_gib", "batch"), [(0.01, 64), (0.3, 29), (2.0, 4), (30.0, 1)])
def test_the_batch_of_a_call_is_found_with_few_simulations(
    model: list[str], monkeypatch: pytest.MonkeyPatch, each_gib: float, batch: int
) -> None:
    asked: list[int] = []

    def simulated_call(content: dict[str, Any]) -> GenerationForecast:
        asked.append(content["batch_size"])
        return call(int((1 + each_gib * content["batch_size"]) * GIB), 10 * GIB)

    monkeypatch.setattr(serving_call, "simulate_content", simulated_call)
    config = compose_config([*model, "hardware=t4", "steps=[infer]", "inference.engine=transformers"])
    demand = Demand(SHAPE, measure_work(config, None))
    found = plan_call(config, demand, tell=lambda text: None, formula=False)
    assert found.config.inference.batch_size == batch and len(asked) <= 3
    assert found.forecast is not None and found.label == ("does not fit" if each_gib > 9 else "fits")


def test_a_served_family_that_cannot_be_simulated_is_planned_without_a_forecast(
    model: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(content: dict[str, Any]) -> GenerationForecast:
        raise NotSimulated("nobody_knows cannot be simulated: no reason")

    monkeypatch.setattr(serving_call, "simulate_content", refuse)
    asked = [*model, "hardware=t4", "steps=[infer]", "inference.engine=transformers"]
    assert plan_verb.run(asked) == 0
    assert "no forecast: nobody_knows cannot be simulated" in capsys.readouterr().out
    assert plan_verb.run([*asked, "--tier=formula"]) == 0
    assert "not known to the formula tier" in capsys.readouterr().out
    for flags, said in {
        ("--tier", "estimate"): "has the tiers formula and simulate",
        ("--timeline", "x.png"): "--timeline is of training",
        ("--rank", "1"): "--rank is of training",
    }.items():
        with pytest.raises(UserError, match=said):
            plan_verb.run([*asked, *flags])
