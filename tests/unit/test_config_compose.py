"""Every shipped YAML composes against the schema, and the conversion keeps every value."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.folders import conf_dir, experiments_dir, shipped_path
from llmsys_exp.config.groups import Groups
from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import Device, GatePolicy, MethodKind, ModelKind, Step
from llmsys_exp.errors import ConfigError

# Fewer files than these would mean that the search, not the configuration, went wrong.
LEAST_OPTIONS = {
    "checkpoint": 1,
    "tracking": 1,
    "model": 30,
    "hardware": 18,
    "method": 4,
    "zero": 5,
    "offload": 5,
    "data": 6,
    "training": 3,
    "inference": 1,
    "launcher": 3,
    "gate": 4,
    "paths": 1,
    "debug": 2,
    "experiment": 9,
}

GROUPS = Groups.shipped()
ROUNDS = max(len(GROUPS.options(group)) for group in GROUPS.names())


def nth_options(number: int) -> list[str]:
    """One option of every group; `ROUNDS` such lists hold every option at least once."""
    lists = {group: GROUPS.options(group) for group in GROUPS.names()}
    return [f"{group}={options[number % len(options)]}" for group, options in lists.items()]


def test_no_group_of_options_is_overlooked() -> None:
    groups = Groups.shipped()
    found = {group: len(groups.options(group)) for group in groups.names()}
    assert set(found) == set(LEAST_OPTIONS)
    assert all(found[group] >= least for group, least in LEAST_OPTIONS.items()), found


@pytest.mark.parametrize("number", range(ROUNDS))
def test_every_shipped_option_composes(number: int) -> None:
    overrides = nth_options(number)
    config = compose_config([*overrides, "data.train=rows.json"])
    assert from_plain(to_plain(config)) == config
    shapeless = "model=local" in overrides or config.model.kind is ModelKind.mlp
    assert config.model.entry in planner.model_names() or shapeless
    assert config.hardware.gpu in planner.gpu_names()


def test_defaults_are_typed() -> None:
    config = compose_config([])
    assert config.method.kind is MethodKind.lora
    assert config.offload.optimizer is Device.auto
    assert config.gate.policy is GatePolicy.error
    assert config.steps == [Step.train]


UNSET = (
    "zero=auto",
    "offload=auto",
    "training=default",
    "inference=transformers",
    "launcher=auto",
    "gate=error",
    "paths=default",
)


@pytest.mark.parametrize("option", UNSET)
def test_the_option_that_undoes_an_experiment_is_what_the_schema_says(option: str) -> None:
    assert compose_config([option]) == compose_config([])


def test_quickstart_is_the_main_job() -> None:
    config = compose_config(["experiment=quickstart"])
    assert config.steps == [Step.train, Step.export, Step.infer]
    assert (config.hardware.gpu, config.hardware.gpus_per_node, config.zero.stage) == ("cpu", 2, 2)
    assert (config.inference.limit, config.inference.save_every) == (16, 10)


def test_data_of_every_shipped_option_is_there() -> None:
    config = compose_config(["experiment=quickstart"])
    for text in (config.data.train, config.data.heldout, config.inference.prompts):
        assert text is not None
        assert shipped_path(text).is_file(), text


def test_no_yaml_names_a_class_to_build() -> None:
    files = [*conf_dir().rglob("*.yaml"), *experiments_dir().glob("*.yaml")]
    assert len(files) > 60
    assert not [file.name for file in files if "_target_" in file.read_text(encoding="utf-8")]


def test_words_that_yaml_and_hydra_may_take_for_switches_stay_words() -> None:
    assert compose_config(["gate=off"]).gate.policy is GatePolicy.off
    assert compose_config(["gate.policy=off"]).gate.policy is GatePolicy.off
    assert compose_config(["offload.optimizer=none"]).offload.optimizer is Device.none


def test_free_dictionaries_take_new_keys() -> None:
    assert compose_config(["+launcher.env.NCCL_DEBUG=INFO"]).launcher.env == {"NCCL_DEBUG": "INFO"}


def test_a_mapping_can_replace_several_settings_at_once() -> None:
    assert compose_config(["zero={stage: 3, overlap_comm: true}"]).zero.stage == 3


def test_a_value_that_only_the_user_can_give_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"data\.train has no value\.  Add data\.train=VALUE"):
        compose_config(["data=alpaca"])


def test_the_user_can_bring_a_folder_of_experiments(tmp_path: Path) -> None:
    groups = Groups.shipped(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("name: mine\n", encoding="utf-8")
    assert "mine" in groups.options("experiment")
    assert groups.file("experiment", "mine") == tmp_path / "experiment" / "mine.yaml"
