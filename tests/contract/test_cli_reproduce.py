"""`llmsys reproduce` from the command line to its exit code, with workers that answer at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract.test_cli_train import write_fake

from llmsys_exp.cli import main
from llmsys_exp.reproduce.repository import code_repository, remove_worktree

OVERRIDES = ("experiment=quickstart", "steps=[train]", "paths.outputs=out")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it."""
    folder = tmp_path_factory.mktemp("place")
    fake = write_fake(folder)
    # its log and its results have to tell of one run
    fake.write_text(
        fake.read_text(encoding="utf-8").replace('"last": 0.1', '"last": 2.0 / 30'), encoding="utf-8"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main.run(["train", *OVERRIDES, f"launcher.python={folder}/fake-python"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    # whoever edits this checkout while tests are run is no drift of theirs
    monkeypatch.setattr("llmsys_exp.reproduce.check._code", lambda logged: [])


def newest(place: Path) -> Path:
    return max((place / "out" / "quickstart").iterdir(), key=lambda one: one.stat().st_mtime_ns)


def first(place: Path) -> Path:
    return min((place / "out" / "quickstart").iterdir(), key=lambda one: one.name)


def test_a_run_is_checked_and_done_again(place: Path, capsys: pytest.CaptureFixture[str]):
    run = first(place)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert main.run(["reproduce", f"quickstart/{run.name}", "--outputs", "out", "--check", "--trust"]) == 0
    assert main.run(["reproduce", str(run), "--trust"]) == 0
    shown = capsys.readouterr().out
    assert "loss, worst of 29 steps" in shown
    assert "figures within bounds" in shown
    again = newest(place)
    assert again != run
    manifest = json.loads((again / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["reproduces"] == f"quickstart/{run.name}"
    assert manifest["overrides"][: len(OVERRIDES)] == list(OVERRIDES)
    assert {file: file.read_bytes() for file in before} == before


def test_other_losses_end_with_five_and_name_what_changed(place: Path, capsys: pytest.CaptureFixture[str]):
    fake, run = place / "fake-python", first(place)
    text = fake.read_text(encoding="utf-8")
    try:
        fake.write_text(
            text.replace('"train/loss": 2.0 / step', '"train/loss": 2.2 / step'), encoding="utf-8"
        )
        code = main.run(["reproduce", str(run), "--trust", "--json", "training.weight_decay=0.3"])
    finally:
        fake.write_text(text, encoding="utf-8")
    assert code == 5
    told = json.loads(capsys.readouterr().out)
    failed = [row["name"] for row in told["rows"] if row["passed"] is False]
    assert "loss of step 1" in failed
    assert told["causes"][0]["drift"]["key"] == "training.weight_decay"
    assert told == json.loads((Path(told["folder"]) / "reproduction.json").read_text(encoding="utf-8"))


def test_programs_of_the_manifest_are_not_started_by_themselves(
    place: Path, capsys: pytest.CaptureFixture[str]
):
    there = len(list((place / "out" / "quickstart").iterdir()))
    assert main.run(["reproduce", str(first(place))]) == 2
    assert "launcher.python" in capsys.readouterr().err
    assert len(list((place / "out" / "quickstart").iterdir())) == there


def test_a_failure_of_the_worker_is_a_failure_of_the_job(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FAKE_FAILURE", "data")
    assert main.run(["reproduce", str(first(place)), "--trust"]) == 2
    assert "Row 3 has no instruction" in capsys.readouterr().err


def test_a_run_that_was_killed_is_compared_with_what_it_had_logged(
    place: Path, capsys: pytest.CaptureFixture[str]
):
    run = first(place)
    killed = place / "killed" / "quickstart" / run.name
    killed.mkdir(parents=True)
    for name in ("start.json", "job.json"):
        (killed / name).write_bytes((run / name).read_bytes())
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (killed / "metrics.jsonl").write_text("".join(lines[:7]) + '{"step": 8, "tra', encoding="utf-8")
    assert main.run(["reproduce", str(killed), "--trust", "--outputs", "out"]) == 0
    shown = capsys.readouterr().out
    assert "did not finish" in shown
    assert "loss, worst of 6 steps" in shown


@pytest.mark.skipif(code_repository() is None, reason="no checkout")
def test_the_code_of_then_is_laid_out_run_and_kept(place: Path, capsys: pytest.CaptureFixture[str]):
    run, repository = first(place), code_repository()
    assert main.run(["reproduce", str(run), "--trust", "--keep-code"]) == 0, capsys.readouterr()
    again = newest(place)
    try:
        assert again != run
        assert (again / "code" / "llmsys_exp" / "cli" / "main.py").is_file()
        manifest, old = (
            json.loads((one / "manifest.json").read_text(encoding="utf-8")) for one in (again, run)
        )
        assert manifest["code"]["patch_sha256"] == old["code"]["patch_sha256"]
        assert manifest["reproduces"] == old["id"]
        assert not list(place.rglob(".code-*"))
    finally:
        remove_worktree(repository, again / "code")


def test_every_metric_of_the_help_and_the_exit_codes_are_said(capsys: pytest.CaptureFixture[str]):
    assert main.run(["reproduce", "--help"]) == 0
    shown: Any = capsys.readouterr().out
    assert "5 reproduced but different" in shown
