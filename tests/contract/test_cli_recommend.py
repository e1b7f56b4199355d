"""`llmsys recommend` from the command line."""

import json

import pytest
import yaml

from llmsys_exp.cli.main import run
from llmsys_exp.config import experiment_file

JOB = ["model=qwen2_5_0_5b", "hardware=rtx4090", "training.global_batch=16"]


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_file, "experiments_dir", lambda: tmp_path)
    return tmp_path


def test_answers_fit_and_are_ordered(capsys):
    assert run(["recommend", *JOB, "method=full", "--best", "3", "--json"]) == 0
    (method,) = json.loads(capsys.readouterr().out)["methods"]
    speeds = [answer["tokens_per_s"] for answer in method["answers"]]
    assert 1 <= len(speeds) <= 3 and speeds == sorted(speeds, reverse=True)
    for answer in method["answers"]:
        assert answer["needs_gib"] <= method["budget_gib"]
        settings = answer["settings"]
        assert settings["training.micro_batch"] * settings["training.grad_accum"] == 16
    for miss in method["faster"]:
        assert miss["tokens_per_s"] > speeds[0]


def test_every_open_method_is_answered_in_words(capsys):
    assert run(["recommend", *JOB, "--best", "1"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line in ("full", "lora", "qlora")] == [
        "full",
        "lora",
        "qlora",
    ]
    assert "tokens/s" in text


def test_what_is_given_stays(capsys):
    assert run(["recommend", *JOB, "method=lora", "zero=stage3", "training.micro_batch=2", "--json"]) == 0
    (method,) = json.loads(capsys.readouterr().out)["methods"]
    assert {a["settings"]["zero.stage"] for a in method["answers"]} == {3}
    assert {a["settings"]["training.micro_batch"] for a in method["answers"]} == {2}


def test_nothing_fits(capsys):
    assert run(["recommend", "model=llama2_70b", "hardware=t4", "method=full", "offload=none"]) == 3
    assert "none of" in capsys.readouterr().out


def test_a_saved_experiment_plans_as_promised(own_folder, capsys, monkeypatch):
    assert run(["recommend", *JOB, "method=lora", "--save", "mine"]) == 0
    content = yaml.safe_load((own_folder / "mine.yaml").read_text())
    assert content["name"] == "mine" and {"override /method": "lora"} in content["defaults"]
    capsys.readouterr()
    group = own_folder / "conf" / "experiment"
    group.mkdir(parents=True)
    (own_folder / "mine.yaml").rename(group / "mine.yaml")
    assert run(["plan", "--config-dir", str(own_folder / "conf"), "experiment=mine", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["verdict"]["fits"]
    assert run(["recommend", *JOB, "method=lora", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["methods"][0]["answers"][0]
    assert plan["forecast"]["required_gib"] == pytest.approx(answer["needs_gib"], abs=0.01)


def test_nothing_is_overwritten_and_nothing_guessed(own_folder, capsys):
    (own_folder / "mine.yaml").write_text("# mine")
    for extra, said in (
        (["method=lora", "--save", "mine"], "exists"),
        (["--save", "other"], "--save needs to know the method"),
        (["--save", "../x", "method=lora"], "cannot be the name"),
        (["--best", "0"], "--best 0"),
        (["--beste", "2"], "--best"),
    ):
        assert run(["recommend", *JOB, *extra]) == 2
        assert said in capsys.readouterr().err
    assert (own_folder / "mine.yaml").read_text() == "# mine"
