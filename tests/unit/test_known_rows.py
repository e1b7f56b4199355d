"""Rows of runs that were listed before: used for the very same file only."""

import os
from pathlib import Path

import pytest
from page_samples import manifest, sample_run

from llmsys_exp.runs import known_rows, listing
from llmsys_exp.runs.known_rows import KnownRows
from llmsys_exp.runs.listing import find_runs


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(known_rows, "WORTH_KEEPING", 1)
    monkeypatch.setattr(known_rows, "SETTLED_S", 0.0)
    for name, loss in (("a", 1.0), ("b", 2.0)):
        sample_run(tmp_path / "outputs" / "mine" / name, manifest(loss, name="mine"))
    return tmp_path / "outputs"


def listed(outputs: Path) -> list[listing.RunRow]:
    known = KnownRows(outputs, outputs.parent / "cache")
    runs = find_runs(outputs, known)
    rows = [run.row for run in runs]
    known.save(run.paths.manifest for run in runs)
    return rows


def test_the_second_list_reads_no_manifest_and_says_the_same(outputs, monkeypatch):
    first = listed(outputs)
    monkeypatch.setattr(listing, "find_manifest", lambda path: pytest.fail(f"{path} was read"))
    assert listed(outputs) == first and [row.loss for row in first] == [1.0, 2.0]


def test_a_manifest_that_was_changed_is_read_again_though_length_and_date_are_the_same(outputs):
    listed(outputs)
    file = outputs / "mine/a/manifest.json"
    was, text = file.stat(), file.read_text()
    file.write_text(text.replace('"loss": 1.0', '"loss": 3.0'))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert file.stat().st_size == was.st_size and file.stat().st_mtime_ns == was.st_mtime_ns
    assert [row.loss for row in listed(outputs)] == [3.0, 2.0]
    file.unlink()
    assert [row.state for row in listed(outputs)] == ["stopped", "complete"]


def test_a_manifest_written_a_moment_ago_is_not_remembered(outputs, monkeypatch):
    monkeypatch.setattr(known_rows, "SETTLED_S", 60.0)
    listed(outputs)
    assert not (outputs.parent / "cache").exists()


def test_what_is_gone_is_forgotten_and_a_broken_file_costs_nothing(outputs):
    first = listed(outputs)
    (kept,) = (outputs.parent / "cache").iterdir()
    (outputs / "mine/a").rename(outputs / "mine/c")
    assert {row.id for row in listed(outputs)} == {"mine/b", "mine/c"}
    assert "mine/c" in kept.read_text() and "mine/a" not in kept.read_text()
    for text in ("{", "[]", '{"form": "0"}'):
        kept.write_text(text)
        assert first[1] in listed(outputs)
