"""Run folders never collide, and half a run never looks like a whole one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import read_json, read_jsonl, write_json
from llmsys_exp.runs.folder import config_hash, create_run_folder
from llmsys_exp.runs.listing import list_runs
from llmsys_exp.runs.paths import RunPaths

NOON = datetime(2026, 1, 2, 12, 0, 0)


def test_the_folder_is_named_by_time_and_content(tmp_path: Path) -> None:
    paths = create_run_folder(tmp_path, "mine", "0123abcd", now=NOON)
    assert paths.folder == tmp_path / "mine" / "2026-01-02_12-00-00-0123abcd"
    assert paths.results.is_dir()


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: create_run_folder(tmp_path, "mine", "0123abcd", now=NOON), range(24)))
    names = sorted(paths.folder.name for paths in made)
    stem = "2026-01-02_12-00-00-0123abcd"
    assert names == sorted([stem, *(f"{stem}-{number}" for number in range(2, 25))])


def test_the_hash_ignores_where_files_go_and_the_order_of_keys() -> None:
    one = {"seed": 1, "zero": {"stage": 2, "x": 1}, "paths": {"outputs": "a"}}
    other = {"paths": {"outputs": "b"}, "zero": {"x": 1, "stage": 2}, "seed": 1}
    assert config_hash(one) == config_hash(other)
    assert config_hash(one) != config_hash({**one, "seed": 2})
    assert len(config_hash(one)) == 8


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "two words"])
def test_names_that_are_no_folder_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        create_run_folder(tmp_path, name, "0123abcd")


def test_a_place_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"Cannot write: .*paths\.outputs=FOLDER"):
        create_run_folder(tmp_path / "file", "mine", "0123abcd")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        create_run_folder(tmp_path, "mine", "0123abcd")


def test_a_full_disk_is_explained_and_leaves_no_file(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "x.json.partial").symlink_to(full)
    with pytest.raises(UserError, match="No space left"):
        write_json(tmp_path / "x.json", {"a": 1})
    assert not (tmp_path / "x.json").exists()


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste', encoding="utf-8")
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]
    assert read_json(path) is None


def test_the_list_tells_complete_runs_from_others(tmp_path: Path) -> None:
    done = create_run_folder(tmp_path, "mine", "aaaaaaaa", now=NOON)
    stopped = create_run_folder(tmp_path, "mine", "bbbbbbbb", now=NOON)
    for paths in (done, stopped):
        write_json(paths.job, {})
    metrics = {"after": {"loss": 0.5, "score": 0.75}}
    figures = {"metrics": metrics, "measured": {"peak_bytes": 7}, "timing_s": {"total": 9.0}}
    write_json(done.manifest, {"schema_version": 1, **figures})
    first, second = list_runs(tmp_path)
    assert (first.state, first.loss, first.score, first.peak_bytes, first.seconds) == (
        "complete",
        0.5,
        0.75,
        7,
        9.0,
    )
    assert (second.state, second.loss, second.folder) == ("stopped", None, str(stopped.folder))


def test_folders_without_a_job_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "mine" / "notes").mkdir(parents=True)
    assert list_runs(tmp_path) == []
    assert not RunPaths(tmp_path / "mine" / "notes").manifest.exists()


@pytest.mark.parametrize(
    "manifest",
    [
        '{"schema_version": 1, "metrics": "x", "measured": [1]}',
        "[]",
        "{",
        '{"schema_version": 1, "metrics": {"after": {"loss": "low"}}}',
    ],
)
def test_a_manifest_edited_by_hand_does_not_stop_the_list(tmp_path, manifest):
    folder = tmp_path / "quickstart" / "one"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("{}", encoding="utf-8")
    (folder / "manifest.json").write_text(manifest, encoding="utf-8")
    [row] = list_runs(tmp_path)
    assert (row.loss, row.peak_bytes) == (None, None)


def test_a_run_that_died_early_is_listed_and_shown_by_the_record_of_its_start(tmp_path, capsys):
    from page_samples import manifest, sample_run

    from llmsys_exp.cli import main

    paths = sample_run(tmp_path / "early" / "odd name", manifest(1.0, name="early"))
    paths.manifest.rename(paths.start)
    paths.job.unlink()
    [row] = list_runs(tmp_path)
    assert (row.id, row.state) == ("early/odd name", "stopped") and row.started and row.steps
    assert main.run(["runs", "show", str(paths.folder)]) == 0
    assert "stopped" in capsys.readouterr().out
    paths.start.unlink()
    assert list_runs(tmp_path) == []


def test_a_folder_that_cannot_be_described_does_not_stay(tmp_path, monkeypatch):
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.jobs import job as jobs
    from llmsys_exp.plan import resolve

    def full_disk(*_args, **_kwargs):
        raise UserError("No space left on device")

    monkeypatch.setattr(jobs.record, "write_job", full_disk)
    monkeypatch.setattr(jobs, "require_engine", lambda *_: None)
    config = compose_config(["experiment=quickstart", f"paths.outputs={tmp_path}"])
    run = jobs.Run(config=config, command=(), overrides=(), steps=tuple(config.steps))
    with pytest.raises(UserError, match="No space left"):
        jobs.make_job(run, jobs.settle_rest(resolve(config)))
    assert list((tmp_path / "quickstart").iterdir()) == []
