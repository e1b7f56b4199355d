"""What a user reads after a slip: the table of texts, for the command line and for YAML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.files import check_file
from llmsys_exp.config.groups import Groups
from llmsys_exp.config.tree import describe, settings_tree
from llmsys_exp.errors import ConfigError

COMMAND_LINE = {
    "misspelt key": (
        "zero.stag=3",
        "zero.stag is not a setting (from the command line: zero.stag=3).  Did you mean zero.stage?",
    ),
    "misspelt section": (
        "trainin.epochs=1",
        "trainin.epochs is not a setting",
        "Did you mean training.epochs?",
    ),
    "misspelt group": ("modle=llama2_7b", "modle is not a setting", "Did you mean model?"),
    "misspelt option": (
        "model=llama2_7",
        "'llama2_7' is not a known option of model (from the command line: model=llama2_7).",
        "Did you mean llama2_7b?",
    ),
    "misspelt experiment": ("experiment=quickstrt", "Did you mean quickstart?"),
    "option instead of value": ("zero=3", "Known: auto, stage0", "For one value write zero.stage=3."),
    "value of a wrong type": (
        "training.epochs=abc",
        "training.epochs cannot be 'abc' (from the command line: training.epochs=abc).  It takes a number.",
    ),
    "misspelt enum": (
        "training.dtype=bf17",
        "training.dtype cannot be 'bf17'",
        "Did you mean bf16?  It takes one of auto, fp32, fp16, bf16.",
    ),
    "word instead of number": (
        "zero.stage=foo",
        "zero.stage cannot be 'foo'",
        "It takes a whole number or auto.",
    ),
    "word of no setting": ("inference.batch_size=al", "It takes a whole number or auto or all."),
    "word of another setting": ("training.micro_batch=all", "It takes a whole number or auto."),
    "fraction for a whole number": ("hardware.nodes=1.5", "It takes a whole number."),
    "wrong item of a list": (
        "steps=[train,exprt]",
        "a list, each item one of train, export, quantize, infer, parallelism.",
    ),
    "name from another tool": ("per_device_train_batch_size=4", "Did you mean training.micro_batch?"),
    "leaf without its section": ("stage=3", "Did you mean zero.stage?"),
    "added key": ("+zero.stag=3", "zero.stag is not a setting", "Did you mean zero.stage?"),
    "added group": ("+model=gpt2", "model is in the configuration already", "Write model=gpt2 without +."),
    "removed key": ("~zero.stage", "zero.stage cannot be removed"),
    "section set to a value": ("method.lora=8", "method.lora is a section, not a setting", "method.lora.r"),
    "key inside a mapping": ("zero={stag: 3}", "zero.stag is not a setting", "Did you mean zero.stage?"),
    "option without its group": ("quickstart", "Did you mean experiment=quickstart?"),
    "bare word": ("hello", "Write settings as key=value."),
    "broken grammar": ("data.name=[1", "Cannot read 'data.name=[1'", "Quote values that hold spaces"),
    "new entry of a mapping": (
        "launcher.env={A: x}",
        "launcher.env has no entry A yet.",
        "A new one takes a plus: +launcher.env.A=VALUE",
    ),
    "unknown group with slash": ("zero/stage=3", "zero/stage is not a group", "Did you mean zero.stage?"),
}


@pytest.mark.parametrize("case", COMMAND_LINE.values(), ids=COMMAND_LINE.keys())
def test_a_slip_on_the_command_line_is_explained(case: tuple[str, ...]) -> None:
    override, *expected = case
    with pytest.raises(ConfigError) as caught:
        compose_config([override])
    for text in expected:
        assert text in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_slips_are_reported_together() -> None:
    slips = ["zero.stag=3", "modle=llama2_7b", "training.epochs=abc", "experiment=quickstrt"]
    with pytest.raises(ConfigError) as caught:
        compose_config([*slips, "seed=7"])
    assert len(caught.value.problems) == len(slips)
    assert str(caught.value).startswith("4 settings need a change:\n  1. zero.stag")


FILES = {
    "misspelt key": (
        "training:\n  epochz: 1\n",
        ", line 2)",
        "training.epochz is not a setting",
        "training.epochs?",
    ),
    "misspelt section": (
        "trainng:\n  epochs: 1\n",
        ", line 1)",
        "trainng is not a setting",
        "Did you mean training?",
    ),
    "wrong type": ("name: a\nseed: many\n", ", line 2)", "seed cannot be 'many'", "It takes a whole number."),
    "option as value": ("model: gpt2\n", ", line 1)", "model is a section", "override /model: NAME"),
    "misspelt option": ("defaults:\n  - override /model: gpt3\n", ", line 2)", "Did you mean gpt2?"),
    "misspelt group": ("defaults:\n  - override /modle: gpt2\n", ", line 2)", "modle is not a group"),
    "broken syntax": ("name: a\n  seed: [1\n", ", line 2, column", "Broken YAML"),
    "list at the top": ("- name\n", "The file is not a mapping"),
}


@pytest.mark.parametrize("case", FILES.values(), ids=FILES.keys())
def test_a_slip_in_a_file_names_file_line_and_key(case: tuple[str, ...], tmp_path: Path) -> None:
    text, *expected = case
    path = tmp_path / "mine.yaml"
    path.write_text(f"# @package _global_\n{text}".replace("# @package _global_\n", "", 1), encoding="utf-8")
    [problem] = check_file(path, "", Groups.shipped())
    assert "mine.yaml" in str(problem)
    for part in expected:
        assert part in str(problem)


def test_keys_of_a_group_file_belong_to_the_group(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("stage: 3\noverlap_com: true\n", encoding="utf-8")
    [problem] = check_file(path, "zero", Groups.shipped())
    assert "zero.overlap_com is not a setting" in str(problem)
    assert ", line 2)" in str(problem)


def test_the_global_package_is_read_from_the_head_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("# @package _global_\nzero:\n  stage: 3\n", encoding="utf-8")
    assert check_file(path, "experiment", Groups.shipped()) == []


def test_interpolations_are_left_to_hydra(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seed: ${oc.env:SEED}\n", encoding="utf-8")
    assert check_file(path, "", Groups.shipped()) == []


def test_types_are_described_in_words() -> None:
    tree = settings_tree()
    assert tree.expects("zero.stage") == "a whole number or auto"
    assert tree.expects("training.max_steps") == "a whole number or null"
    assert tree.expects("launcher.env") == "a mapping of names to texts"
    assert describe(bool) == "true or false"
