"""An experiment that was saved is the job that was asked for, and never takes another's place."""

import pytest
import yaml

from llmsys_exp.config.experiment_file import check_savable, experiment_path, write_experiment
from llmsys_exp.errors import UserError


def saved(path, *overrides):
    write_experiment(path, overrides, {"zero.stage": 2}, comment="c")
    return yaml.safe_load(path.read_text())


def test_values_are_read_as_hydra_reads_them(tmp_path):
    content = saved(
        tmp_path / "mine.yaml", "data.train=no", "data.columns={a:b}", 'data.score="x y"', "seed=3"
    )
    assert content["data"] == {"train": "no", "columns": {"a": "b"}, "score": "x y"}
    assert content["seed"] == 3 and content["name"] == "mine" and content["zero"] == {"stage": 2}


def test_groups_become_defaults_and_a_given_name_stays(tmp_path):
    content = saved(tmp_path / "mine.yaml", "model=gpt2", "name=other")
    assert content["defaults"] == [{"override /model": "gpt2"}]
    assert content["name"] == "other"


@pytest.mark.parametrize("text", ["experiment=quickstart", "debug=fast", "~data", "+experiment=x"])
def test_what_a_file_cannot_repeat_is_refused(text):
    with pytest.raises(UserError, match="--save cannot carry"):
        check_savable(["model=gpt2", text])


@pytest.mark.parametrize("name", ["1", "true", "NULL", "x.yaml", "../x", "", "-x", "ü", "a b"])
def test_names_that_would_not_be_found_again_are_refused(name):
    with pytest.raises(UserError, match="cannot be the name of an experiment"):
        experiment_path(name)


def test_a_file_that_appeared_meanwhile_stays(tmp_path):
    path = tmp_path / "race.yaml"
    path.write_text("first")
    with pytest.raises(UserError, match="exists"):
        write_experiment(path, [], {}, comment="")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
    write_experiment(path, [], {}, comment="", force=True)
    assert "name: race" in path.read_text() and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_made_is_said_and_nothing_stays(tmp_path):
    (tmp_path / "conf").write_text("a file")
    with pytest.raises(UserError, match="Cannot write"):
        write_experiment(tmp_path / "conf/experiment/mine.yaml", [], {}, comment="")
    assert (tmp_path / "conf").read_text() == "a file"
