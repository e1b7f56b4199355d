"""`llmsys plan -m` as users and scripts meet it: the table, the files, the exit codes, Ctrl-C, a terminal."""

from __future__ import annotations

import csv
import json
import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import llmsys

JOB = ("model=mlp_fashion_mnist", "data=fashion_mnist_standin", "method=full", "training.micro_batch=1")
LONG = ("model=smollm2_135m_instruct", "method=lora", "training.micro_batch=1", "hardware=h100")
"""Forecasts that take long enough to be interrupted."""
GRID = (*JOB, "hardware=v100_16gb,h100", "training.dtype=fp16,bf16")
COMMAND = (sys.executable, "-m", "llmsys_exp", "plan")
ENVIRONMENT = {"COLUMNS": "100"}


def plan(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return llmsys("plan", *arguments, cwd=cwd, env=ENVIRONMENT)


def test_a_sweep_ends_with_one_table_and_a_summary(tmp_path: Path) -> None:
    done = plan("-m", *GRID, cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    header = next(index for index, line in enumerate(lines) if "verdict" in line)
    assert lines[header].split()[:3] == ["hardware", "dtype", "verdict"]
    rows = [line.split() for line in lines[header + 1 :] if line.startswith(("  v100", "  h100"))]
    assert [row[:3] for row in rows] == [
        ["v100_16gb", "fp16", "fits"],
        ["v100_16gb", "bf16", "failed"],
        ["h100", "fp16", "fits"],
        ["h100", "bf16", "fits"],
    ]
    assert "training.dtype=bf16 does not run on" in done.stdout
    assert lines[-1].startswith("4 points in ")
    assert lines[-1].endswith(": 3 fit, 1 failed.")
    assert max(map(len, lines)) <= 100
    assert "\r" not in done.stdout
    assert "error: point 2 (" in done.stderr
    assert not list(tmp_path.iterdir())


def test_bad_points_are_kept_in_json(tmp_path: Path) -> None:
    done = plan("-m", "--json", *GRID, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ""
    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert [point["overrides"][-1] for point in points] == ["training.dtype=fp16", "training.dtype=bf16"] * 2
    assert [("error" in point) for point in points] == [False, True, False, False]
    assert (points[1]["kind"], points[1]["exit_code"]) == ("ConfigError", 2)
    assert "does not run on" in points[1]["error"]


def test_points_with_the_same_settings_are_forecast_once(tmp_path: Path) -> None:
    done = plan("-m", *LONG, "data.max_length=64", "seed=1,2", "zero=stage2,auto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 have the settings of another and were not forecast again." in done.stdout


def test_a_repeated_point_says_what_it_would_say_alone(tmp_path: Path) -> None:
    both = plan("-m", "--json", *LONG, "data.max_length=64", "zero=stage2,auto", cwd=tmp_path)
    alone = plan("--json", *LONG, "data.max_length=64", "zero=auto", cwd=tmp_path)
    repeated, expected = json.loads(both.stdout.splitlines()[1]), json.loads(alone.stdout)
    for one in (repeated, expected):
        one["forecast"].pop("seconds")
    assert repeated == expected


def test_the_files_asked_for_hold_every_point(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = plan("-m", *GRID, "--csv", "rows.csv", "--plot=map.png", cwd=tmp_path)
    assert "Wrote rows.csv" in done.stdout
    assert "Wrote map.png (map of hardware and training.dtype)" in done.stdout
    with (tmp_path / "rows.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["verdict"] for row in rows] == ["fits", "failed", "fits", "fits"]
    assert float(rows[0]["required_gib"]) > float(rows[0]["part.weights_gib"]) > 0
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.png", "rows.csv"]


def test_one_plan_can_be_drawn_and_written_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = plan(*JOB, "hardware=h100", "--plot", "one.svg", "--csv", "one.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Wrote one.svg (parts at the peak and peak of each phase)" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "one.svg"]


REFUSED = {
    "existing file": (["--csv", "old.csv"], "Add --force to replace it"),
    "no folder": (["--csv", "nowhere/x.csv"], "There is no such folder (--csv nowhere/x.csv)"),
    "suffix": (["--csv", "x.xlsx"], "--csv does not write .xlsx"),
    "axes without plot": (["--axes", "hardware,training.dtype"], "Add --plot FILE.png"),
    "misspelt flag": (["--cvs", "x.csv"], "Did you mean --csv?"),
}


@pytest.mark.parametrize(("flags", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_written_is_refused_before_the_first_point(
    flags: list[str], text: str, tmp_path: Path
) -> None:
    (tmp_path / "old.csv").write_text("old", encoding="utf-8")
    done = plan("-m", *GRID, *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stdout == ""
    assert (tmp_path / "old.csv").read_text(encoding="utf-8") == "old"


def test_other_verbs_do_not_take_the_flags_of_tables(tmp_path: Path) -> None:
    done = llmsys("train", "--csv", "x.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "--csv is not an argument (llmsys train)" in done.stderr


def test_a_full_disk_costs_the_file_and_neither_the_table_nor_the_others(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    enough_for_the_table = 15_000

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (enough_for_the_table, enough_for_the_table))

    done = subprocess.run(
        [*COMMAND, "-m", *GRID, "--csv", "rows.csv", "--plot", "map.png"],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=small_disk,
    )
    assert done.returncode == 2
    assert "4 points in " in done.stdout
    assert "Wrote rows.csv" in done.stdout
    assert "Cannot write: File too large (map.png)" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_terminal_shows_progress_on_one_line_and_ctrl_c_shows_what_is_done(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    lengths = ",".join(str(length) for length in range(64, 1024, 16))
    process = subprocess.Popen(
        [*COMMAND, "-m", *LONG, f"data.max_length={lengths}", "--csv", "rows.csv"],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT, "TERM": "xterm", "NO_COLOR": "1"},
        stdout=terminal,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    text = b""
    while b"  2 of 60  fits" not in text:  # the first points are done, the others are not
        text += os.read(main, 4096)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    try:
        while more := os.read(main, 4096):
            text += more
    except OSError:  # how Linux says that a terminal is closed
        pass
    os.close(main)
    assert process.returncode == 130
    progress, _, table = text.decode().partition("Points, GiB")
    assert progress.count("\n") == 1  # the empty line above the table
    assert "composing 60 points" in progress
    assert "of 60 points in " in table
    assert "  fits  " in table
    assert b"Not written: rows.csv" in errors
    assert not list(tmp_path.iterdir())
