"""`data.preview`: what the worker finds out and how the parent shows it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from test_data_load import ROWS, make_job
from tiny_text import END, byte_tokenizer, sentencepiece_tokenizer

from llmsys_exp.cli import train
from llmsys_exp.errors import UserError
from llmsys_exp.report.console import Console
from llmsys_exp.report.preview_text import show_preview
from llmsys_exp.workers import preview as worker


@pytest.fixture
def shown(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "load_tokenizer", lambda job: byte_tokenizer())
    rows = [*ROWS, {"instruction": "q", "output": "w" * 90}]
    return worker.preview(make_job(tmp_path, rows=rows, max_length=60, heldout_split=0.25))


def printed(shown, *, colour: bool = False) -> str:
    stream = io.StringIO()
    show_preview(Console(stream, colour=colour), shown)
    return stream.getvalue()


def first_number(shown) -> str:
    """The one digit that tells the first example from others; which one it is hangs on the split."""
    (digit,) = {text for text in shown["examples"][0]["texts"] if text.isdigit()}
    return digit


def test_the_worker_tells_tokens_marks_counts_and_lengths(shown):
    first = shown["examples"][0]
    assert len(shown["examples"]) == 3
    number = first_number(shown)
    assert "".join(first["texts"]) == f"<|user|>question {number}{END}\n<|assistant|>answer {number}{END}"
    learnt = [text for text, mark in zip(first["texts"], first["learnt"], strict=True) if mark]
    assert "".join(learnt) == f"answer {number}{END}"
    counts = shown["counts"]
    assert counts["rows"] == counts["sequences"] + shown["fingerprint"]["train"].get("left_out", 0)
    assert counts["heldout"] == 5 and counts["learnt"] < counts["tokens"]
    lengths = shown["lengths"]["tokens"]
    assert lengths["shortest"] <= lengths["p50"] <= lengths["p99"] <= lengths["longest"] <= 60
    assert any("left out" in note for note in shown["notes"])


def test_without_colours_what_is_learnt_stands_between_marks(shown):
    text = printed(shown)
    assert f"«a|n|s|w|e|r| |{first_number(shown)}|{END}»" in text and "\x1b" not in text
    assert "held-out examples" in text and "p99" in text and "left out" in text


def test_on_a_terminal_what_is_learnt_is_green(shown):
    text = printed(shown, colour=True)
    assert f"\x1b[32;1ma|n|s|w|e|r| |{first_number(shown)}|{END}\x1b[0m" in text and "«" not in text


def test_nothing_in_the_data_steers_the_terminal(shown):
    shown["examples"][0]["texts"][0] = "\x1b[2J\r"
    text = printed(shown)
    assert "\\x1b[2J\\x0d" in text and "\x1b" not in text


def test_long_examples_lose_their_middle(shown):
    texts = [f"<{n}>" for n in range(1000)]
    shown["examples"] = [{"texts": texts, "learnt": [n > 990 for n in range(1000)], "lengths": [600, 400]}]
    text = printed(shown)
    assert "... 600 tokens ..." in text and "<0>" in text and "<500>" not in text
    assert "1000 tokens, 9 learnt, 2 examples" in text


@pytest.fixture
def parent(tmp_path, monkeypatch, shown):
    """The parent in an empty folder, with a worker that answers at once; the commands it was asked to run."""
    commands: list[list[str]] = []

    def run(command, *, log, **rest):
        commands.append(command)
        if "llmsys_exp.workers.preview" in command:
            folder = Path(command[-1])
            job = json.loads((folder / "job.json").read_text())
            assert job["resolved"]["train_file"] == str(tmp_path / "rows.json")
            (folder / "results" / "preview.json").write_text(json.dumps(shown))

    monkeypatch.setattr("llmsys_exp.jobs.shown.run_worker", run)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return commands


def test_a_preview_starts_no_training_and_leaves_no_folder(parent, tmp_path, capsys):
    arguments = ["data=alpaca", f"data.train={tmp_path / 'rows.json'}", "data.preview=true"]
    assert train.run(arguments) == 0
    assert "First examples" in capsys.readouterr().out
    assert [command[2].rpartition(".")[2] for command in parent] == ["convert", "preview"]
    assert not list(Path().iterdir()) and not Path(parent[-1][-1]).exists()
    assert train.run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["counts"]["heldout"] == 5 and "First examples" in err


def test_a_preview_of_data_that_is_not_there_names_it(parent):
    with pytest.raises(UserError, match=r"no such file.*data\.train=nowhere\.json"):
        train.run(["data=alpaca", "data.train=nowhere.json", "data.preview=true"])
    assert not parent


def test_texts_of_tokens_join_to_the_whole_text():
    words = ("ein Grüß dich, Welt", "größer als 🙂 das") * 3
    for tokenizer in (byte_tokenizer(None), sentencepiece_tokenizer(None, words)):
        ids = tokenizer("größer 🙂 Welt", add_special_tokens=False)["input_ids"]
        assert "".join(worker.token_texts(tokenizer, ids)).strip() == "größer 🙂 Welt"
