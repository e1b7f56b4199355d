"""`llmsys report`, `llmsys sweep report` and `table`: what is meant, where files go, what is said of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_samples import end_point, manifest, sample_run, sample_sweep

from llmsys_exp.cli import main


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return sample_run(tmp_path / "outputs/sample/r1", manifest(1.25)).folder


@pytest.fixture
def sweep_folder() -> str:
    paths, sweep = sample_sweep(Path("outputs"), [["seed=1"], ["seed=2"]])
    end_point(paths, sweep, 1, manifest(1.5))
    end_point(paths, sweep, 2, None, kind="oom_gpu", what="The GPU ran out of memory")
    return str(paths.folder)


@pytest.mark.parametrize("named", ["outputs/sample/r1", "sample/r1", "outputs/sample/r1/manifest.json"])
def test_run_is_named_by_folder_id_or_manifest(
    run_folder: Path, named: str, capsys: pytest.CaptureFixture[str]
):
    assert main.run(["report", named]) == 0
    assert capsys.readouterr().out == "outputs/sample/r1/report.html\n"
    assert "1.25" in (run_folder / "report.html").read_text(encoding="utf-8")


def test_page_goes_where_it_is_asked_for_and_json_tells(run_folder: Path, capsys: pytest.CaptureFixture[str]):
    (run_folder / "manifest.json").write_text('{"schema_version": 2, "torn', encoding="utf-8")
    assert main.run(["report", "sample/r1", "-o", "here.html", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"page": str(Path("here.html").absolute()), "run": "sample/r1", "complete": False}
    assert not (run_folder / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sample/r2"], "Did you mean sample/r1?"),
        ([], "report takes one run"),
        (["sample/r1", "--pdf"], "--pdf is not an argument"),
        (["sample/r1", "-o", "x.pdf"], "no .html"),
        (["outputs"], "not a run folder"),
    ],
    ids=["unknown", "none", "flag", "suffix", "not a run"],
)
def test_bad_input_is_refused_in_one_message(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert main.run(["report", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_table_of_a_sweep_is_shown_and_written(sweep_folder: str, capsys: pytest.CaptureFixture[str]):
    assert main.run(["sweep", "table"]) == 0, "the newest one"
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["point", "state", "seed", "kind"]
    assert first.split()[:3] == ["1", "done", "1"] and "1.5" in first
    assert second.split()[:4] == ["2", "failed", "2", "oom_gpu"]
    assert main.run(["sweep", "table", "--csv", "mine.csv", "--parquet", "mine.parquet", "--json"]) == 0
    assert [row["heldout_loss"] for row in json.loads(capsys.readouterr().out)] == [1.5, None]
    assert Path("mine.csv").is_file() and Path("mine.parquet").is_file()


def test_page_of_a_sweep_is_written_from_either_verb_with_its_table(
    sweep_folder: str, capsys: pytest.CaptureFixture[str]
):
    assert main.run(["report", sweep_folder]) == 0
    assert "2 points" in capsys.readouterr().out
    assert "The GPU ran out of memory" in Path(sweep_folder, "report.html").read_text(encoding="utf-8")
    assert Path(sweep_folder, "results.csv").is_file()
    for _ in range(2):  # a page may be made again
        assert main.run(["sweep", "report", "-o", "page.html", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["points"] == 2


def test_pages_and_tables_take_no_place_that_is_somebody_elses(
    sweep_folder: str, capsys: pytest.CaptureFixture[str]
):
    Path("letter.html").write_text("<p>mine</p>", encoding="utf-8")
    cases = {
        ("report", "-o", "letter.html"): "llmsys did not write it",
        ("report", "-o", "gone/page.html"): "no such folder",
        ("report", "--pdf"): "--pdf is not an argument",
        ("table", "--csv", "letter.html"): "does not write .html",
        ("table", "elsewhere"): "no folder of a sweep",
    }
    for arguments, said in cases.items():
        assert main.run(["sweep", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert Path("letter.html").read_text(encoding="utf-8") == "<p>mine</p>"
