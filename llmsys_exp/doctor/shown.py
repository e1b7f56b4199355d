"""The report as text: how many of each, then a line a finding with the command that mends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.doctor.finding import NOTE, OK, PROBLEM
from llmsys_exp.report.console import Console

_TITLES = {"gpus": "GPUs"}
_STYLES = {OK: "green", NOTE: "yellow", PROBLEM: "red"}


def show(console: Console, report: Mapping[str, Any]) -> None:
    """Write the report."""
    machine, counts = report["machine"], report["counts"]
    many = "1 problem" if counts[PROBLEM] == 1 else f"{counts[PROBLEM]} problems"
    console.line(console.style(f"{many}, {counts[NOTE]} notes, {counts[OK]} ok", "bold"))
    told = (
        f"Python {machine['python']}",
        machine["system"] or machine["platform"],
        f"{machine['cpus']} cores",
    )
    console.line(f"  {', '.join(told)}, {machine['cpu'] or 'unknown processor'}")
    versions = [f"{name} {version}" for name, version in report["versions"].items()]
    for start in range(0, len(versions), 5):
        console.line(f"  {', '.join(versions[start : start + 5])}")
    subject = ""
    for one in report["findings"]:
        if one["subject"] != subject:
            subject = one["subject"]
            console.title(_TITLES.get(subject, subject.capitalize()))
        state = console.style(f"{one['state']:<8}", _STYLES[one["state"]])
        console.line(f"  {state}{one['said']}")
        if one["fix"]:
            console.line(f"  {'':<8}  fix: {one['fix']}")
