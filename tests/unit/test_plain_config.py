"""The configuration as plain values and back."""

from __future__ import annotations

import json

import pytest

from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import Config, MethodKind, Step
from llmsys_exp.errors import ConfigError


def test_every_setting_survives_the_way_through_json():
    config = Config(name="x", steps=[Step.train, Step.infer])
    config.method.kind = MethodKind.full
    config.zero.stage = 3
    config.training.gradient_checkpointing = True
    config.launcher.env = {"A": "1"}
    config.method.lora.targets = ["q_proj"]
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config


def test_enums_travel_by_name():
    assert to_plain(Config())["steps"] == ["train"]
    assert to_plain(Config())["method"]["kind"] == "lora"


def test_missing_keys_take_their_default():
    assert from_plain({}) == Config()


def test_whole_numbers_do_for_fractions():
    assert isinstance(from_plain({"training": {"epochs": 2}}).training.epochs, float)


def test_all_problems_come_at_once_with_the_closest_name():
    with pytest.raises(ConfigError) as caught:
        from_plain({"zero": {"stag": 2}, "seed": "x", "method": {"kind": "lora2"}, "training": {"liger": 1}})
    text = str(caught.value)
    assert "4 settings need a change" in text
    assert "zero.stag is not a setting.  Did you mean zero.stage?" in text
    assert "seed cannot be 'x'" in text
    assert "method.kind cannot be 'lora2'.  It takes full, freeze, lora, qlora" in text
    assert "training.liger cannot be 1" in text


def test_a_group_must_be_a_group():
    with pytest.raises(ConfigError, match="zero must be a group"):
        from_plain({"zero": 2})
