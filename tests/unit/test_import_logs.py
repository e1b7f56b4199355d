"""Losses that other tools logged are read in one form, however long or broken the log is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmsys_exp.errors import UserError
from llmsys_exp.importers import read_log
from llmsys_exp.importers.logs import lines, state_file

STATE = {
    "max_steps": 30,
    "logging_steps": 10,
    "log_history": [
        {"step": 10, "loss": 2.5, "learning_rate": 1e-4, "grad_norm": 1.5, "epoch": 0.5},
        {"step": 10, "eval_loss": 2.4, "eval_runtime": 1.0},
        {"step": 20, "loss": 2.0, "learning_rate": 5e-5},
        {"step": 30, "train_runtime": 12.5, "train_loss": 2.2},
    ],
}
CHAT = """\
[INFO] [config.py:1001:print]   gradient_accumulation_steps .. 2
***** Running training *****
***** Evaluating perplexity, Epoch 0/2 *****
ppl: 20.5, loss: 3.0
Beginning of Epoch 1/2, Total Micro Batches 4
Epoch: 0, Step: 0, Rank: 0, loss = 4.0
Epoch: 0, Step: 0, Rank: 1, loss = 2.0
Model Parameters: 0.1 B, Latency: 0.50s, TFLOPs: 1.00, Samples/sec: 8.00
Epoch: 0, Step: 1, Rank: 0, loss = tensor(1.5, device='cuda:0')
Epoch: 0, Step: 1, Rank: 1, loss = 0.5
[INFO] [logging.py:96:log_dist] [Rank 0] step=1, skipped=0, lr=[0.00025, 0.0005], mom=[(0.9, 0.95)]
Epoch: 0, Step: 2, Rank: 0, loss = 1e0
Epoch: 0, Step: 3, Rank: 0, loss = 2
***** Evaluating perplexity, Epoch 1/2 *****
ppl: 7.4, loss: 2.0
"""


def test_trainer_state(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps(STATE))
    run = read_log(tmp_path / "trainer_state.json")
    assert [(one["step"], one["loss"]) for one in run.steps] == [(10, 2.5), (20, 2.0)]
    assert run.steps[0]["learning_rate"] == 1e-4
    assert run.evaluation == [{"step": 10, "loss": 2.4}]
    assert (run.mean_of_steps, run.total_steps, run.seconds, run.format) == (10, 30, 12.5, "trainer_state")
    assert read_log(tmp_path) == run


def test_newest_checkpoint_of_an_output_folder(tmp_path: Path) -> None:
    for step in (9, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": step, "loss": 1.0}]}))
    assert read_log(tmp_path).steps[0]["step"] == 10


def test_trainer_log_takes_the_last_run_of_the_file(tmp_path: Path) -> None:
    rows = [
        {"current_steps": 5, "total_steps": 9, "loss": 9.0, "lr": 1e-3},
        {"current_steps": 2, "total_steps": 6, "loss": 3.0, "lr": 1e-4, "epoch": 0.3},
        {"current_steps": 2, "total_steps": 6, "eval_loss": 2.9},
        {"current_steps": 4, "total_steps": 6, "loss": 2.0, "lr": 5e-5},
        {"current_steps": 6, "total_steps": 6},
    ]
    text = "\n".join(json.dumps(row) for row in rows) + '\n{"current_steps": 7, "lo'
    (tmp_path / "trainer_log.jsonl").write_text(text)
    run = read_log(tmp_path)
    assert [(one["step"], one["loss"], one["learning_rate"]) for one in run.steps] == [
        (2, 3.0, 1e-4),
        (4, 2.0, 5e-5),
    ]
    assert [one["loss"] for one in run.evaluation] == [2.9]
    assert (run.total_steps, run.mean_of_steps, run.format) == (6, 2, "trainer_log")
    assert len(run.notes) == 2  # more than one run, and a broken line


def test_deepspeed_chat_means_over_ranks_and_accumulation(tmp_path: Path) -> None:
    (tmp_path / "training.log").write_text(CHAT)
    run = read_log(tmp_path / "training.log")
    assert [(one["step"], one["loss"]) for one in run.steps] == [(1, 2.0), (2, 1.5)]
    assert run.steps[0]["learning_rate"] == 0.00025
    assert [(one["step"], one["loss"], one["perplexity"]) for one in run.evaluation] == [
        (0, 3.0, 20.5),
        (2, 2.0, 7.4),
    ]
    assert (run.total_steps, run.seconds, run.format) == (4, 0.5, "deepspeed_chat")


def test_deepspeed_chat_without_print_loss(tmp_path: Path) -> None:
    (tmp_path / "training.log").write_text(
        "\n".join(line for line in CHAT.splitlines() if "Rank:" not in line)
    )
    run = read_log(tmp_path / "training.log")
    assert not run.steps
    assert "--print_loss" in run.notes[0]
    assert len(run.evaluation) == 2


def test_a_huge_log_is_read_line_by_line_and_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmsys_exp.importers.logs.trainer_log.MOST_ROWS", 10)
    row = '{"current_steps": %d, "loss": 1.0}\n'
    text = "".join(row % step for step in range(1, 40)) + "x" * (lines.LONGEST_LINE * 2) + "\n"
    (tmp_path / "trainer_log.jsonl").write_text(text)
    run = read_log(tmp_path / "trainer_log.jsonl")
    assert len(run.steps) == 10
    assert "only the first" in run.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.log", "nothing of interest\n" * 3, "no known kind"),
        ("trainer_state.json", '{"log_history": [', "cut short"),
        ("trainer_state.json", '{"log_history": []}', "holds no loss"),
        ("trainer_state.json", '{"best": 1}', "no log_history"),
        ("trainer_log.jsonl", '{"current_steps": 1}\n', "holds no loss"),
    ],
)
def test_logs_that_tell_nothing_are_refused(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=what):
        read_log(tmp_path / name)


def test_odd_numbers_in_a_log(tmp_path: Path) -> None:
    text = '{"current_steps": Infinity, "loss": 1}\n{"current_steps": 1, "loss": NaN, "total_steps": 1e999}\n'
    (tmp_path / "trainer_log.jsonl").write_text(text)
    run = read_log(tmp_path)
    assert [one["step"] for one in run.steps] == [1]
    assert run.total_steps is None
    state = {"logging_steps": 0.1, "max_steps": float("inf"), "log_history": [{"step": 4, "loss": 1.0}, 3]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    run = read_log(tmp_path / "trainer_state.json")
    assert (run.mean_of_steps, run.total_steps) == (4, None)


def test_missing_logs_and_large_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such log"):
        read_log(tmp_path / "x")
    with pytest.raises(UserError, match="holds no log"):
        read_log(tmp_path)
    (tmp_path / "trainer_state.json").write_text(json.dumps(STATE))
    monkeypatch.setattr(state_file, "MOST_BYTES", 10)
    with pytest.raises(UserError, match=r"trainer_log\.jsonl"):
        read_log(tmp_path)
