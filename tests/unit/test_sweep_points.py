"""Points of a sweep: Hydra's grammar, sweep files, and each configuration once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.plain import to_plain
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.runs.folder import config_hash
from llmsys_exp.sweeps.points.composing import Composer
from llmsys_exp.sweeps.points.find import points_of
from llmsys_exp.sweeps.points.settings import expand, one_setting, write

TEXTS = [
    "abc",
    "a, b",
    "it's",
    "a\\",
    "\\'",
    "x=1",
    "",
    "null",
    "1",
    "1e-4",
    "/x/y.z",
    "a b",
    "off",
    'say "hi"',
]


def _value(text: str) -> object:
    return OverridesParser.create().parse_override(text).value()


@pytest.mark.parametrize("word", ["1", "-3", "007", "1.5", "1e-4", "1.", "abc", "true", "nan", "off", "null"])
def test_settings_are_read_as_hydra_reads_them(word: str) -> None:
    read, hydras = one_setting(f"training.x={word}").value, _value(f"training.x={word}")
    assert type(read) is type(hydras)
    assert repr(read) == repr(hydras)


@pytest.mark.parametrize("value", [*TEXTS, 3, 0.5, 1e-5, True, None, [1, "a b"], {"a": "x y"}], ids=repr)
def test_values_of_a_file_are_written_so_that_hydra_reads_them_back(value: object) -> None:
    assert _value(write("data.system", value).text) == value


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("a.b=1,2", ["a.b=1", "a.b=2"]),
        ("a.b=range(1,4)", ["a.b=1", "a.b=2", "a.b=3"]),
        ("a.b=choice(x,'y z')", ["a.b=x", "a.b=y\\ z"]),
        ("+a.b=1,2", ["+a.b=1", "+a.b=2"]),
        ("a.b=[1,2],[3]", ["a.b=[1,2]", "a.b=[3]"]),
    ],
)
def test_hydras_grammar_is_expanded(text: str, texts: list[str]) -> None:
    assert [one.text for one in expand(text)] == texts


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer(["model=opt_1_3b", "hardware=v100_16gb"])


@pytest.mark.parametrize(
    "overrides",
    [
        [
            "zero.stage=3",
            "offload.optimizer=cpu",
            "training.micro_batch=auto",
            "method.lora.targets=[q_proj]",
        ],
        ["method=full", "training.gradient_checkpointing=true", "seed=3", "seed=4", "steps=[train,infer]"],
        ["zero=stage2", "method.lora.alpha=32", "data.name=12", "+launcher.env.X=1"],
    ],
    ids=["settings", "group", "addition"],
)
def test_points_have_the_configuration_that_hydra_composes(composer: Composer, overrides: list[str]) -> None:
    resolved = composer.resolve([one_setting(text) for text in overrides])
    composed = compose_config(["model=opt_1_3b", "hardware=v100_16gb", *overrides])
    assert resolved.config() == composed
    assert composer.key(resolved)[:8] == config_hash(to_plain(composed))


def test_the_command_line_gives_every_combination_once() -> None:
    points = points_of(["zero.stage=2,3"], ["training.learning_rate=1e-4,2e-4,0.0001"], None, "train")
    assert [one.overrides for one in points.points] == [
        ("zero.stage=2", "training.learning_rate=0.0001"),
        ("zero.stage=2", "training.learning_rate=0.0002"),
        ("zero.stage=3", "training.learning_rate=0.0001"),
        ("zero.stage=3", "training.learning_rate=0.0002"),
    ]
    assert [one.number for one in points.points] == [1, 2, 3, 4]
    assert points.dropped == 2
    assert points.base == ()


def test_an_experiment_brings_its_own_sweep_and_the_command_line_goes_first() -> None:
    points = points_of(["experiment=hw6_lora_2x16gb", "zero.stage=2", "method.kind=lora"], (), None, "train")
    assert len(points.points) == 4  # training.micro_batch and training.gradient_checkpointing, two each
    assert all("offload.param=none" in one.overrides for one in points.points)


FILE = """
base: {method.kind: lora, seed: 7}
grid:
  zero.stage: [2, 3]
  training.micro_batch: "1,2"
zip: {method.lora.r: [4, 8], method.lora.alpha: [8, 16]}
when:
  - if: {zero.stage: 3, training.micro_batch: 1}
    grid: {offload.param: [none, cpu]}
exclude:
  - {zero.stage: 2, method.lora.r: [8, 16]}
points:
  - {zero.stage: 0, data.system: "a, b"}
"""


def test_a_file_combines_grid_zip_when_exclude_and_points(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(FILE)
    points = points_of(["seed=9"], ["training.epochs=1,2"], file, "train")
    told = {one.overrides for one in points.points}
    # of each number of epochs: stage 2 at r=4 (2), stage 3 (2 x 2, those of one sequence twice), one by itself
    assert len(points.points) == len(told) == 2 * (2 + 2 + 2 * 2 + 1)
    assert points.base == ("method.kind=lora", "seed=9")
    assert ("zero.stage=0", "data.system='a, b'", "training.epochs=2") in told
    assert not any("zero.stage=2" in one and "method.lora.r=8" in one for one in told)


BAD_FILES = {
    "grid: {zero.stage: []}": "zero.stage has no values",
    "grid: {zero.stag: [1, 2]}": "Did you mean zero.stage?",
    "grid: {zero.stage: [1, x]}": "zero.stage cannot be 'x'",
    "grid: {method: [lora, lorra]}": "Did you mean lora?",
    "grids: {zero.stage: [1]}": "Did you mean grid?",
    "zip: {zero.stage: [1, 2], seed: [1]}": "zip needs as many values",
    "grid: {seed: [1, 2]}\nzip: {seed: [3]}": "seed is swept twice",
    "grid: {zero.stage: [1]}\nexclude: [{zero.stage: 1}]": "All 1 points are excluded",
    "grid: {zero.stage: [1]}\nwhen: [{if: {seed: 1}}]": "An entry of when is",
    "base: {seed: 1}": "Nothing is swept",
    "points: []": "points takes a list",
    "grid: [": "Broken YAML",
    "": "is no sweep file",
    "grid: {seed: !!python/object:os.system []}": "Broken YAML",
    "grid: {training.epochs: [1, 2]}": "training.epochs is on the command line",
    "grid: &a {seed: [1, 2]}\nzip: *a": "Aliases (*name) are not read in a sweep file (sweep.yaml, line 2)",
    "zip: 5": "zip takes a mapping of settings to lists, not 5",
    "grid: {seed: 'range(1,1e12)'}": "has 999,999,999,999 values (sweep.yaml, grid: seed)",
    "grid: {seed: 'range(1,4,0)'}": "has a step of 0",
    "grid: {seed: '1,2)'}": "Cannot read 'seed=1,2)' (sweep.yaml, grid: seed)",
    "grid: {resume: [x, y]}": "resume does not go with a sweep",
}


@pytest.mark.parametrize(("text", "told"), BAD_FILES.items())
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        points_of(["training.epochs=3"], (), file, "train")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["zero.stage=2"], "Nothing is swept"),
        (["zero.stage=range(3,3)"], "zero.stage has no values"),
        (["zero.stag=1,2"], "Did you mean zero.stage?"),
        (["zero.stage=1,2", "zero.stage=3"], "both fixed and swept"),
        (["zero.stage=1,2", "zero.stage=0,3"], "swept twice"),
        (["training.learning_rate=interval(0,1)"], "has no list of values"),
        (["seed=shuffle(range(1,1000000000))"], "has 999,999,999 values"),
        (["name=glob(*)"], "name has no values"),
        (["seed=1,2", "resume=x"], "resume does not go with a sweep"),
        (["seed=range(500)", "training.max_steps=range(1,501)"], "The sweep has 250,000 points"),
    ],
)
def test_bad_command_lines_are_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(UserError) as caught:
        points_of(overrides, (), None, "train")
    assert told in str(caught.value)


def test_glob_stands_for_options_of_a_group() -> None:
    found = points_of(["zero=glob(stage*,exclude=[stage0,stage1])", "hardware=cpu"], (), None, "train")
    assert [one.overrides for one in found.points] == [("zero=stage2",), ("zero=stage3",)]


def test_what_a_group_leaves_open_may_be_swept() -> None:
    swept = ("data.train=a,b", "seed=1,2")
    found = points_of(("data=alpaca", "hardware=cpu"), swept, None, "train")
    assert [(one.config().data.train, one.config().seed) for one in found.resolved] == [
        ("a", 1), ("a", 2), ("b", 1), ("b", 2)
    ]  # fmt: skip
    assert len({point.key for point in found.points}) == 4
    both = points_of(("hardware=cpu",), ("data=alpaca,order_book", "data.train=a,b"), None, "train")
    assert [one.value("data.name") for one in both.resolved] == ["alpaca"] * 2 + ["order_book"] * 2
    with pytest.raises(ConfigError, match=r"data\.train has no value"):
        points_of(("data=alpaca", "hardware=cpu"), ("seed=1,2",), None, "train")
