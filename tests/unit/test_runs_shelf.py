"""Run folders listed, filtered, followed and cleared away: what stays whatever is asked for."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from page_samples import end_point, manifest, sample_run, sample_sweep

from llmsys_exp.browse import prune
from llmsys_exp.browse.filters import read_condition, read_time
from llmsys_exp.browse.tail import added, last_lines
from llmsys_exp.cli import main
from llmsys_exp.report.console import clean
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.lock import locked
from llmsys_exp.runs.paths import RunPaths

NOW = datetime.now()


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def make(outputs: Path, name: str, days: int, loss: float | None = 1.0, **more: object) -> RunPaths:
    """Make a run that began some days ago; without a loss it failed."""
    folder = outputs / name / f"{NOW - timedelta(days=days):%Y-%m-%d_%H-%M-%S}-{days:08d}"
    paths = sample_run(folder, manifest(loss or 1.0, name=name, **more))
    if loss is None:
        paths.manifest.unlink()
        write_json(paths.status, {"state": "failed", "kind": "oom_gpu"})
    return paths


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the last figure of each run that is listed: the days since it began."""
    assert main.run(["runs", *arguments, "--json"]) == 0
    return [row["folder"][-1] for row in json.loads(capsys.readouterr().out)]


def pruned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], dict[str, str]]:
    assert main.run(["runs", "prune", *arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    gone = [one["folder"] for one in told["goes"]]
    return [Path(one).name[-1] for one in gone], {one["folder"][-1]: one["why"] for one in told["stays"]}


@pytest.mark.parametrize(
    ("arguments", "days"),
    [
        ([], "9531"),
        (["--reverse"], "1359"),
        (["--state", "failed"], "5"),
        (["--state", "oom_gpu,running"], "5"),
        (["--name", "two"], "3"),
        (["--name", "one/*9"], "9"),
        (["--since", "4d"], "31"),
        (["--where", "loss<2.5"], "31"),
        (["--where", "seed=42", "--where=score>=0.5"], "9"),
        (["--where", "method.kind=l*", "--limit", "1"], "1"),
        (["--sort", "loss"], "1395"),
        (["--sort", "loss", "--reverse", "--limit", "2"], "93"),
        (["outputs/one"], "951"),
    ],
)
def test_list_is_filtered_and_sorted(outputs, capsys, arguments, days):
    for name, day, loss in (("one", 9, 3.0), ("one", 5, None), ("two", 3, 2.0), ("one", 1, 1.0)):
        paths = make(outputs, name, day, loss)
        if day == 9:
            content = json.loads(paths.manifest.read_text(encoding="utf-8"))
            content["config"]["seed"] = 42
            write_json(paths.manifest, content)
    assert listed(capsys, *arguments) == list(days)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "method.knd=lora"], "Did you mean method.kind?"),
        (["--where", "loss"], "is no condition"),
        (["--where", "loss<low"], "low is no number"),
        (["--where"], "--where needs a value"),
        (["--state", "faild"], "Did you mean failed?"),
        (["--since", "yesterday"], "no age and no date"),
        (["--sort", "size"], "not a known order"),
        (["--limit", "0"], "no number of runs"),
        (["prune"], "needs to know what may go"),
        (["prune", "--failed", "--state", "failed"], "say two things"),
        (["prune", "--keep", "-1"], "--keep -1 is no number of runs"),
        (["tail", "latest~7"], "outputs holds 1 run."),
        (["tail", "--follow", "--json"], "does not go with"),
        (["show", "one/nothing"], "There is no such run"),
        (["shw"], "Did you mean llmsys runs show?"),
        ([__file__], "This is no folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_message(outputs, capsys, arguments, said):
    make(outputs, "one", 1)
    assert main.run(["runs", *arguments]) == 2
    assert said in "".join(capsys.readouterr())


def test_conditions_compare_numbers_as_numbers_and_texts_as_patterns():
    assert read_condition("training.learning_rate=0.0001").holds(1e-4)
    assert read_condition("resume=null").holds(None) and not read_condition("loss>1").holds(None)
    assert read_condition("zero.stage!=2").holds(3) and read_condition("liger=true").holds(True)
    assert read_time("2026-01-02", "--since", NOW) == datetime(2026, 1, 2)


def test_thousands_of_runs_are_not_read_to_show_the_newest(outputs, capsys, monkeypatch):
    from llmsys_exp.runs import listing

    for day in range(1, 9):
        make(outputs, "one", day)
    asked: list[Path] = []
    real = listing.find_manifest
    monkeypatch.setattr(listing, "find_manifest", lambda path: asked.append(path) or real(path))
    assert listed(capsys, "--limit", "2") == ["2", "1"]
    assert len(asked) == 2
    assert main.run(["runs", "--limit", "3"]) == 0
    assert "5 more: --limit all" in capsys.readouterr().out


def test_points_of_sweeps_are_told(outputs, capsys):
    paths, sweep = sample_sweep(outputs, [["seed=1"], ["seed=2"]])
    end_point(paths, sweep, 2, manifest(1.5))
    assert main.run(["runs", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["point"] == {"sweep": f"sample/{paths.folder.name}", "number": 2}


def test_show_tells_what_a_run_is(outputs, capsys):
    make(outputs, "one", 1, 1.25)
    assert main.run(["runs", "show", "latest"]) == 0
    out = capsys.readouterr().out
    assert "held-out loss" in out and "1.25" in out and "fastest of 4 that fit" in out


def test_reproduce_takes_the_newest_run(outputs, capsys):
    make(outputs, "one", 1)
    assert main.run(["reproduce", "latest~3", "--check"]) == 2
    assert "outputs holds 1 run." in capsys.readouterr().err
    assert main.run(["reproduce", "latest", "--check"]) != 0
    assert "There is no such run" not in capsys.readouterr().err


def test_show_says_that_a_manifest_is_cut(outputs, capsys):
    paths = make(outputs, "one", 1)
    paths.manifest.write_text("{")
    assert main.run(["runs", "show", "latest"]) == 0
    assert "manifest.json cannot be read" in capsys.readouterr().out


def test_prune_is_dry_until_it_is_told_to_do_it(outputs, capsys):
    for day in (9, 5, 3, 1):
        make(outputs, "one", day, None if day == 5 else 1.0)
    make(outputs, "two", 4)
    assert pruned(capsys, "--keep", "2") == (["9", "5"], {})
    assert pruned(capsys, "--older", "4d", "--keep", "0") == (["9", "5", "4"], {})
    assert pruned(capsys, "--failed") == (["5"], {})
    assert len(listed(capsys)) == 5
    assert pruned(capsys, "--older", "4d", "--yes")[0] == ["9", "5", "4"]
    assert listed(capsys) == ["3", "1"]
    assert not (outputs / "two").exists()


def test_prune_spares_what_runs_and_what_others_need(outputs, capsys):
    first, read, going, running, fresh = (make(outputs, "one", day) for day in (9, 8, 7, 6, 5))
    inside = manifest(1.0, reproduces=f"one/{first.folder.name}", inputs={"model_folder": str(read.merged)})
    make(outputs, "two", 1).manifest.write_text(json.dumps(inside), encoding="utf-8")
    going.manifest.write_text(
        json.dumps(manifest(1, reproduces=f"one/{fresh.folder.name}")), encoding="utf-8"
    )
    for paths in (running, fresh):
        paths.manifest.unlink()
    old = time.time() - 86400
    for file in (fresh.job, fresh.metrics):
        os.utime(file, (old, old))
    with locked(running.worker_lock):
        gone, stays = pruned(capsys, "--name", "one")
    assert gone == ["7", "5"], "what only goes for one that goes itself is not needed"
    assert "repeats it" in stays["9"] and "reads it" in stays["8"] and stays["6"] == "it runs"
    gone, stays = pruned(capsys, "--name", "one")
    assert "last 10 minutes" in stays["6"], "it may run on another machine"
    os.utime(running.job, (old, old))
    os.utime(running.metrics, (old, old))
    assert pruned(capsys, "--name", "one", "--needed")[0] == ["9", "8", "7", "6", "5"]


def test_prune_spares_points_and_what_a_broken_sweep_may_need(outputs, capsys):
    paths, sweep = sample_sweep(outputs, [["seed=1"], ["seed=2"]])
    end_point(paths, sweep, 1, manifest(1.5))
    make(outputs, "sample", 3)
    assert pruned(capsys, "--keep", "0")[0] == ["3"]
    paths.sweep.write_text("{", encoding="utf-8")
    gone, stays = pruned(capsys, "--keep", "0")
    assert gone == [] and all("cannot be read" in why for why in stays.values())
    assert len(pruned(capsys, "--keep", "0", "--needed")[0]) == 2


def test_prune_of_checkpoints_leaves_the_only_weights_and_what_can_go_on(outputs, capsys):
    runs = {day: make(outputs, "one", day, None if day == 3 else 1.0) for day in (9, 5, 3)}
    for paths in runs.values():
        (paths.checkpoints / "step-00000001").mkdir(parents=True)
        (paths.checkpoints / "step-00000001" / "state").write_bytes(b"x" * 9000)
    runs[9].adapter.mkdir()
    gone, stays = pruned(capsys, "--keep", "0", "--checkpoints-only")
    assert gone == ["s"] and "all there is" in stays["5"] and "go on from" in stays["3"]
    assert main.run(["runs", "prune", "--keep", "0", "--checkpoints-only", "--yes"]) == 0
    assert runs[9].manifest.is_file() and not runs[9].checkpoints.exists() and runs[5].checkpoints.is_dir()


def test_prune_never_leaves_the_folder_nor_follows_a_link(outputs, capsys, tmp_path):
    precious = tmp_path / "precious"
    elsewhere = make(tmp_path / "other", "one", 9)
    precious.mkdir()
    (precious / "thesis").write_text("x", encoding="utf-8")
    mine = make(outputs, "mine", 5)
    (mine.folder / "link").symlink_to(precious)
    (outputs / "linked").symlink_to(elsewhere.folder.parent)
    (outputs / "mine" / elsewhere.folder.name).symlink_to(elsewhere.folder)
    assert main.run(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert "is a link" in capsys.readouterr().out
    assert (precious / "thesis").is_file() and elsewhere.manifest.is_file() and not mine.folder.exists()


def test_prune_takes_the_folder_however_it_is_named(outputs, capsys, tmp_path, monkeypatch):
    (tmp_path / "here").symlink_to(outputs)
    inner = make(outputs, "one", 5).folder.parent
    for named in ("here", "../outputs", "../here/one", str(inner)):
        (tmp_path / "cwd").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "cwd" if named.startswith("..") else tmp_path)
        assert pruned(capsys, named, "--keep", "0") == (["5"], {})


def test_prune_that_was_killed_is_finished_by_the_next(outputs, capsys, monkeypatch):
    paths = make(outputs, "one", 5)
    make(outputs, "one", 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prune.shutil, "rmtree", killed)
        assert main.run(["runs", "prune", "--keep", "1", "--yes"]) == 130
    capsys.readouterr()
    assert listed(capsys) == ["1"]
    assert not paths.folder.exists() and len(list((outputs / "one").iterdir())) == 2
    assert main.run(["runs", "prune", "--keep", "1", "--yes"]) == 0
    assert [one.name[-1] for one in (outputs / "one").iterdir()] == ["1"]


def test_run_that_begins_meanwhile_is_not_removed(outputs, capsys, monkeypatch):
    paths = make(outputs, "one", 5)
    paths.lock.touch()
    monkeypatch.setattr("llmsys_exp.browse.prune.state_of", lambda _: "complete")
    with locked(paths.lock):
        assert main.run(["runs", "prune", "--keep", "0", "--yes"]) == 2
    assert "still going" in capsys.readouterr().out and paths.manifest.is_file()


def test_end_of_a_log_is_found_without_reading_it_all(tmp_path, monkeypatch):
    monkeypatch.setattr("llmsys_exp.browse.tail.BLOCK_BYTES", 7)
    log = tmp_path / "log.txt"
    log.write_bytes(b"one\ntwo\nthree \xff\nfour")
    assert last_lines(log, 2) == (["three \ufffd", "four"], log.stat().st_size)
    assert last_lines(tmp_path / "none", 2) == ([], 0)
    assert clean("1 %\r2 %\r\n\x1b]0;title\x07\x1b[1mx\x1b[0m\x08") == "2 %\nx"


def test_log_is_followed_until_the_run_ends(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"old\n")
    steps = iter([b"a\nhal", b"f\n", None])

    def is_going() -> bool:
        step = next(steps)
        with log.open("ab") as stream:
            stream.write(step or b"last")
        return step is not None

    assert list(added(log, 4, is_going, 0)) == ["a", "half", "last"]


def test_events_of_workers_are_said_in_words(tmp_path):
    progress = {"event": "progress", "name": "train", "done": 2, "total": 6, "unit": "step", "loss": 1.5}
    events = [progress, {"event": "stoppable", "pid": 1}, {"event": "error", "text": "no"}, {"event": 3}]
    log = tmp_path / "log.txt"
    log.write_text(
        "".join(f"@llmsys {json.dumps(one)}\n" for one in events) + "@llmsys {\n", encoding="utf-8"
    )
    assert last_lines(log, 9)[0] == ["train: step 2 of 6, loss 1.5", "error: no", "@llmsys {"]


def test_tail_follows_the_newest_run_and_tells_how_it_ended(outputs, capsys):
    make(outputs, "one", 5)
    paths = make(outputs, "one", 1, None)
    paths.log.write_text("".join(f"line {number}\n" for number in range(30)), encoding="utf-8")
    assert main.run(["runs", "tail", "--lines", "2"]) == 0
    assert capsys.readouterr().out == "line 28\nline 29\n"
    with running(paths):
        assert main.run(["runs", "tail", "--follow", "--lines", "1"]) == 4
    out, err = capsys.readouterr()
    assert out == "line 29\nmore\n" and "failed (oom_gpu)" in err


@contextmanager
def running(paths: RunPaths) -> Iterator[None]:
    """Let a run write one more line and end."""
    begun = threading.Event()

    def work() -> None:
        with locked(paths.lock):
            begun.set()
            time.sleep(0.1)
            with paths.log.open("a", encoding="utf-8") as stream:
                stream.write("more\n")

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    yield
    thread.join()


@pytest.mark.parametrize("words", [["runs"], ["runs", "prune"], ["compare"]], ids=" ".join)
def test_help_names_the_command_and_touches_nothing(words, capsys, tmp_path):
    assert main.run([*words, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"llmsys {' '.join(words)} - ")
    assert not list(tmp_path.iterdir())
