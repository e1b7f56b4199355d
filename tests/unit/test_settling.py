"""What a plan says of the settings that it has chosen."""

from __future__ import annotations

import pytest

from llmsys_exp.config.compose import compose_config
from llmsys_exp.plan import resolve

OPEN = ["zero.stage=auto", "training.micro_batch=1", "training.gradient_checkpointing=auto"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["hardware=h100"], "the fastest of "),
        (["hardware=cpu", "hardware.gpus_per_node=2"], "the one with the least work of "),
        (
            ["hardware=cpu", "hardware.gpus_per_node=2", "training.gradient_checkpointing=false"],
            "the first of ",
        ),
        (
            ["hardware=cpu", "hardware.gpus_per_node=1", "training.gradient_checkpointing=false"],
            "the only combination",
        ),
    ],
    ids=["gpu", "cpu-ranked", "cpu-listed", "cpu-one"],
)
def test_speed_is_claimed_only_where_it_is_forecast(overrides, said):
    plan = resolve(compose_config(["model=gpt2", "method=lora", *OPEN, *overrides]))
    [reason] = [choice.reason for choice in plan.choices if choice.key == "zero.stage"]
    assert reason.startswith(said)
    assert (plan.tokens_per_s is not None) == ("fastest" in reason)
    assert all("fastest" not in choice.reason for choice in plan.choices) or plan.tokens_per_s
