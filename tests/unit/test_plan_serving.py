"""`llmsys plan` for runs that answer prompts: what is shown, written and refused."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from llmsys_exp.cli import plan
from llmsys_exp.cli.hydra_verb import Point, Request
from llmsys_exp.cli.options import Options
from llmsys_exp.cli.plan_sweep import Sweep
from llmsys_exp.config.compose import compose_config
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_OK
from llmsys_exp.report.console import Console

SERVE = ["steps=[infer]", "inference=sglang"]


def planned(capsys: pytest.CaptureFixture[str], *overrides: str, code: int = EXIT_OK) -> Any:
    assert plan.run([*overrides, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_model_that_cannot_be_trained_here_can_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["model=llama2_70b", "hardware=h100", "hardware.gpus_per_node=4", "method=full"]
    shown = planned(capsys, *SERVE, *where)
    assert set(shown) == {"overrides", "serving"}
    assert shown["serving"]["verdict"]["label"] == "fits"
    assert (shown["serving"]["arguments"]["tp_size"], shown["serving"]["arguments"]["dp_size"]) == (2, 2)


def test_what_does_not_fit_ends_with_its_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["model=llama2_70b", "hardware=h100"]
    shown = planned(capsys, *SERVE, *where, code=EXIT_DOES_NOT_FIT)
    assert shown["serving"]["verdict"]["fix"] == "inference.sglang.tp_size=2 hardware.gpus_per_node=2"


def test_the_forecast_is_shown_with_reason_limits_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = "inference.prompts=shipped:data/prompts.json"
    assert plan.run([*SERVE, "model=qwen2_5_7b", "hardware=h200", prompts]) == EXIT_OK
    text = capsys.readouterr().out
    for part in ("fits", "KV tokens in each replica", "kv pool", "request table", "free before the weights",
                 "smallest mem_fraction_static", "inference.sglang.context_length", "on average, at 4 bytes"):  # fmt: skip
        assert part in text
    assert "optimizer" not in text


def test_training_and_serving_are_shown_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        "steps=[train,infer]",
        "zero.stage=2",
        "training.micro_batch=1",
        "training.gradient_checkpointing=true",
    ]
    both = planned(capsys, *steps, "inference=sglang")
    assert {"forecast", "verdict", "serving"} <= set(both)


def test_a_sweep_puts_engines_into_one_table() -> None:
    sweep = Sweep(Console.on(io.StringIO()), total=2, as_json=False)
    config = compose_config([*SERVE, "model=qwen2_5_7b"])
    for number, gpu in enumerate(("h200", "l4"), start=1):
        config.hardware.gpu = gpu
        overrides = (f"hardware={gpu}",)
        assert sweep.plan_point(Request("plan", config, overrides, {}, Options(), in_sweep=True)) == EXIT_OK
        sweep.end_point(Point(overrides, EXIT_OK), number)
    large, small = sweep.rows
    assert (large["verdict"], large["largest"]) == ("fits", "kv_pool")
    assert large["extra"]["KV tokens"] > 10 * small["extra"]["KV tokens"]
    assert small["budget_bytes"] - small["required_bytes"] == small["headroom_bytes"]
    sweep.show()
    assert "KV" in sweep._console.stream.getvalue()
