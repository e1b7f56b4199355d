"""The cases that were frozen and measured are the ones that their scripts write."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("validation_cases.py", "h200-2026-11-29-cases.jsonl"),
        ("validation_settings.py", "h200-2026-11-29-settings-cases.jsonl"),
    ],
)
def test_a_script_still_writes_the_cases_that_were_measured(script, kept):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script],
        capture_output=True,
        text=True,
        check=True,
        cwd=BENCHMARKS.parent,
    )
    written = [json.loads(line) for line in done.stdout.splitlines()]
    stored = [json.loads(line) for line in (BENCHMARKS / "results" / kept).read_text().splitlines()]
    assert [row["id"] for row in written] == [row["id"] for row in stored]
    assert [row for row, other in zip(written, stored, strict=True) if row != other] == []


@pytest.mark.parametrize("name", ["h200-2026-11-29", "h200-2026-11-29-settings"])
def test_every_case_has_a_frozen_forecast_and_a_result(name):
    files = (BENCHMARKS / "results" / f"{name}-{kind}.jsonl" for kind in ("cases", "frozen", "measured"))
    cases, frozen, measured = ([json.loads(line)["id"] for line in f.read_text().splitlines()] for f in files)
    assert sorted(cases) == sorted(frozen) == sorted(measured)
