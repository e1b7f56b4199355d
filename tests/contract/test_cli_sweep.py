"""`llmsys sweep` from points to exit code, with jobs that only pretend to train (`sweep_standin`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.cli import main
from llmsys_exp.runs.lock import locked
from llmsys_exp.sweeps.folder import SweepPaths, open_sweep
from llmsys_exp.sweeps.running import start
from llmsys_exp.sweeps.running.processes import identity

STANDIN = Path(__file__).parents[1] / "sweep_standin.py"


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def command(folder: Path, number: int, timeout_s: float | None) -> list[str]:
        return [sys.executable, str(STANDIN), *real(folder, number, timeout_s)[3:]]

    real = start.job_command
    monkeypatch.setattr(start, "job_command", command)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def sweep(*arguments: str) -> int:
    return main.run(["sweep", *arguments])


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return what `status --json` says."""
    capsys.readouterr()
    sweep("status", *arguments, "--json")
    return json.loads(capsys.readouterr().out)


def folder() -> str:
    (found,) = Path("outputs").glob("*/*-sweep-*")
    return str(found)


def test_sweep_runs_fails_is_tried_again_and_is_then_complete(capsys: pytest.CaptureFixture[str]):
    assert sweep("run", "name=ok,fail", "hardware=cpu") == 4
    said = capsys.readouterr().out
    assert "[2 of 2] point 2 failed (oom_gpu: The GPU ran out of memory): name=fail" in said
    assert "Try again:    llmsys sweep retry" in said
    assert "Table: " in said
    assert Path(folder(), "results.csv").read_text(encoding="utf-8").splitlines()[2].startswith("2,")
    before = shown(capsys)
    assert before["counts"] == {"done": 1, "failed": 1}
    assert before["points"][1]["kind"] == "oom_gpu"
    assert Path(before["points"][0]["folder"], "manifest.json").is_file()
    assert sweep("retry", folder(), "--only", "oom_gpu", "--set", "name=short") == 0
    after = shown(capsys)
    assert after["counts"] == {"done": 2}
    assert after["points"][1]["overrides"] == ["name=fail", "name=short"]
    assert after["points"][0]["folder"] == before["points"][0]["folder"], "what is done stays as it is"
    assert sweep("resume") == 0
    assert shown(capsys)["points"] == after["points"]


def test_points_that_do_not_fit_are_skipped_with_figures_and_the_cheapest_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("llmsys_exp.cli.sweep_go.check_room", lambda *asked: None)  # as if it had the GPU
    settings = ["model=qwen2_5_7b", "hardware=rtx4090", "method=lora", "gate=skip"]
    assert sweep("run", *settings, "training.micro_batch=1,64") == 0
    point = shown(capsys)["points"][1]
    assert (point["state"], point["where"]) == ("skipped", "gpu")
    assert point["needed_gib"] > point["limit_gib"]
    assert "fits with training.micro_batch=" in point["what"]
    asked = json.loads(Path(folder(), "sweep.json").read_text(encoding="utf-8"))
    assert [one["verdict"] for one in asked["forecasts"]] == ["runs", "skipped"]
    for more, says, state in (
        (["training.micro_batch=48"], "Point 2 stays skipped: needs", "skipped"),
        (["training.micro_batch=1", "seed=2"], "Planned again: 2", "done"),
    ):
        capsys.readouterr()
        sweep("retry", "--only", "skipped", *(part for text in more for part in ("--set", text)))
        assert says in capsys.readouterr().out
        assert shown(capsys)["points"][1]["state"] == state


def test_what_the_gate_skipped_runs_where_it_is_told_to_warn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("llmsys_exp.cli.sweep_go.check_room", lambda *asked: None)
    assert (
        sweep("run", "model=qwen2_5_7b", "hardware=rtx4090", "gate=skip", "training.micro_batch=64,65") == 3
    )
    assert sweep("retry", "--only", "skipped") == 3
    assert "--set gate=warn runs them all the same" in capsys.readouterr().out
    assert sweep("retry", "--only", "skipped", "--set", "gate=warn") == 0
    assert shown(capsys)["counts"] == {"done": 2}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rum"], "Did you mean run?"),
        (["run"], "Nothing is swept"),
        (["run", "zero.stag=1,2"], "Did you mean zero.stage?"),
        (["run", "nofile.yaml"], "neither a sweep file nor KEY=VALUE"),
        (["run", "seed=1,2", "--fail-fst"], "Did you mean --fail-fast?"),
        (["run", "seed=1,2", "--jobs", "0"], "--jobs 0 is no number above 0"),
        (["run", "seed=1,2", "--verb", "export"], "'export' is not a known verb of a sweep"),
        (["run", "seed=1,2", "hardware=h100", "model=gpt2"], "this machine offers 0"),
        (["status"], "There is no sweep here"),
        (["wait", "--timeout=nan"], "--timeout nan is no number of seconds"),
        (["resume", "nowhere"], "no folder of a sweep"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_command_lines_are_refused_in_one_message(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    assert sweep(*arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert not Path("outputs").exists()


def test_unknown_kind_and_setting_of_a_retry_are_refused(capsys: pytest.CaptureFixture[str]):
    sweep("run", "name=ok,fail", "hardware=cpu")
    assert sweep("retry", "--only", "oom") == 2
    assert "oom_gpu" in capsys.readouterr().err
    for bad in ("zero.stag=1", "name=ok,fail", "resume=x", "hardware=h100", "hardware.nodes=2", "name"):
        assert sweep("retry", "--set", bad) == 2, bad
    assert shown(capsys)["counts"] == {"done": 1, "failed": 1}


def test_damaged_sweep_is_refused_and_hides_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    before = Path("before")
    before.mkdir()
    monkeypatch.chdir(before)
    assert sweep("run", "name=ok,stopped", "hardware=cpu") == 6
    monkeypatch.chdir(tmp_path)
    Path(before, "outputs").rename("outputs")
    whole, paths = Path(folder()), SweepPaths(Path(folder()).absolute())
    assert "llmsys sweep resume" in capsys.readouterr().out
    shutil.rmtree(whole / "points")
    assert sweep("resume") == 6, "logs that were cleared away are no reason to end"
    monkeypatch.chdir(tmp_path)

    shutil.move(before, "elsewhere")
    assert sweep("resume") == 2
    assert "started in is gone" in capsys.readouterr().err
    shutil.move("elsewhere", before)

    options = paths.sweep.read_text(encoding="utf-8")
    for old, new in (
        ('"pack"', '"pace"'),
        ('"jobs": null', '"jobs": "2"'),
        ('"base": [', '"base": 1, "x": ['),
    ):
        paths.sweep.write_text(options.replace(old, new), encoding="utf-8")
        assert sweep("resume") == 2
        assert "not as it was written" in capsys.readouterr().err
    paths.sweep.write_text(options, encoding="utf-8")

    shutil.copytree(whole, whole.with_name("2000-01-01_00-00-00-sweep-0badcafe"))
    for content in (b"", paths.ledger.read_bytes()[:20]):
        paths.ledger.write_bytes(content)
        assert sweep("resume") == 2, "else points that are done would run again"
        assert "ledger of this sweep is gone" in capsys.readouterr().err
    assert sweep("list", "--json") == 0
    other, gone = json.loads(capsys.readouterr().out)
    assert other["counts"] == {"done": 1, "failed": 1}
    assert "ledger of this sweep is gone" in gone["error"]
    assert sweep("list") == 0


def test_who_comes_second_is_told_who_runs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    sweep("run", "name=ok,stopped", "hardware=cpu")
    lock = SweepPaths(Path(folder())).lock.absolute()
    with locked(lock):
        assert sweep("resume") == 0
        asked = iter([None, None])  # nobody is at work yet when it looks
        monkeypatch.setattr("llmsys_exp.cli.sweep_go.runner_of", lambda paths: next(asked, os.getpid()))
        assert sweep("resume") == 0
    assert capsys.readouterr().out.count(f"Process {os.getpid()} runs this sweep already") == 2


def test_who_stops_a_sweep_or_looks_at_jobs_that_go_on_is_told_what_comes_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def stopped(*asked: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmsys_exp.cli.sweep_go._run_here", stopped)
    assert sweep("run", "name=ok,short", "hardware=cpu", "--json") == 130
    assert json.loads(capsys.readouterr().out)["summary"] == "0/2 done"
    assert sweep("resume") == 130
    assert "nobody runs it now" in (said := capsys.readouterr().out)
    assert f"Go on:        llmsys sweep resume {Path(folder()).absolute()}" in said
    paths, asked = open_sweep(Path(folder()))
    asked.ledger(paths).move(1, "running", **identity())
    assert sweep("status") == 6
    assert "what runs goes on by itself" in capsys.readouterr().out


def test_detached_sweep_is_told_of_cancelled_and_waited_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # a process of its own does not see our stand-in: a module of this name is found before the real one's
    runner = tmp_path / "sitecustomize.py"
    runner.write_text(
        "import sys\nfrom pathlib import Path\n"
        "if 'sweep' in sys.orig_argv:\n"
        "    from llmsys_exp.sweeps.running import start\n"
        "    real = start.job_command\n"
        f"    start.job_command = lambda *asked: [sys.executable, {str(STANDIN)!r}, *real(*asked)[3:]]\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sweep("run", "name=short,slow", "hardware=cpu", "--detach") == 0
    deadline = time.monotonic() + 60
    while shown(capsys)["counts"] != {"running": 1, "done": 1} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert shown(capsys)["runner"] is not None
    assert sweep("resume") == 0, "a second runner is none"
    assert "runs this sweep already" in capsys.readouterr().out
    assert sweep("cancel") == 0
    assert shown(capsys)["counts"] == {"done": 1, "failed": 1}
    assert shown(capsys)["points"][1]["kind"] == "stopped"
    assert sweep("wait") == 6
    assert "[1 of 2" in Path(folder(), "log.txt").read_text(encoding="utf-8")


def test_help_and_list(capsys: pytest.CaptureFixture[str]):
    assert sweep("--help") == 0
    assert "llmsys sweep resume [FOLDER]" in capsys.readouterr().out
    assert sweep("list") == 0
    assert "No sweeps in outputs" in capsys.readouterr().out


def test_status_pays_neither_for_hydra_nor_for_torch():
    code = "import sys; from llmsys_exp.cli import main; main.run(['sweep', 'list']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"hydra", "torch", "pandas"} & set(done.stdout.split())


SEARCH = """
base: {name: learn, hardware: cpu, gate: skip}
search:
  training.learning_rate: {low: 1e-6, high: 1e-2, log: true}
objective: evaluation.loss
trials: 4
sampler: random  # the third of seed 11 is bad
seed: 11
pruner: {median: {startup_trials: 2}}
"""


def test_search_stops_what_is_bad_and_shows_the_best_with_its_command(capsys: pytest.CaptureFixture[str]):
    Path("slow_where_bad").touch()
    Path("search.yaml").write_text(SEARCH, encoding="utf-8")
    assert sweep("run", "search.yaml") == 0
    said = capsys.readouterr().out
    assert "A search of 4 points" in said
    assert "[3 of 4" in said
    assert "Best: point 1, evaluation.loss 0.145" in said
    assert "\n  llmsys train name=learn hardware=cpu gate=skip training.learning_rate=" in said
    found = shown(capsys)
    assert [one["state"] for one in found["points"]] == ["done", "done", "pruned", "done"]
    assert "Stopped at step 3: train/loss" in found["points"][2]["what"]
    assert found["search"]["best"][0]["values"] == found["points"][0]["values"]
    assert sweep("resume") == 0, "nothing is left"
    assert shown(capsys)["points"] == found["points"]
    assert sweep("report") == 0
    page = Path(folder(), "report.html").read_text(encoding="utf-8")
    assert '"x": {"kind": "log", "title": "training.learning_rate"}' in page


def test_search_that_was_stopped_says_how_to_go_on_and_does(capsys: pytest.CaptureFixture[str]):
    Path("search.yaml").write_text(SEARCH.replace("trials: 4", "trials: 2"), encoding="utf-8")
    assert sweep("run", "search.yaml", "--fill") == 2
    assert "--fill does not go with a search" in capsys.readouterr().err
    assert sweep("run", "search.yaml") == 0
    ledger = Path(folder(), "ledger.jsonl")
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:5]))  # as it was after the first point
    assert sweep("status") == 6
    said = capsys.readouterr().out
    assert "1 of 2 trials" in said
    assert "Go on:        llmsys sweep resume" in said
    assert sweep("resume") == 0
    assert [one["attempts"] for one in shown(capsys)["points"]] == [1, 1]
    assert sweep("resume", "--trials", "3") == 0
    assert len(shown(capsys)["points"]) == 3
    assert sweep("resume", "--trials", "3") == 2
    assert "The search has 3 trials" in capsys.readouterr().err
