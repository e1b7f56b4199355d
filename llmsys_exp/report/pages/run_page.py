"""The page of one run: what came out beside what was planned, curves, settings with reasons, environment.

For runs that train, answer or export, and for one that was killed: what its folder tells.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Step
from llmsys_exp.report.console import duration
from llmsys_exp.report.pages.layout import own_version, render, shown
from llmsys_exp.report.pages.run_charts import curve_charts, memory_charts
from llmsys_exp.report.pages.run_facts import environment_facts, figure_cards
from llmsys_exp.report.pages.run_settings import settings_rows
from llmsys_exp.runs.files import read_json, read_jsonl
from llmsys_exp.runs.manifest import is_edited, utc_now
from llmsys_exp.runs.status import COMPLETE, RUNNING, state_of
from llmsys_exp.runs.told import Told, part

SHOWN_ANSWERS = 20
LONGEST_ANSWER = 4_000
LOG_LINES, LOG_BYTES = 40, 16_000
_KILLED = "It was killed, and nothing is written about its end"
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ASKED = ("instruction", "input", "prompt")
_ANSWERED = ("answer", "output")


def run_page(told: Told) -> str:
    """Return the page.

    Raises:
        UserError: when the package that makes pages is missing.
    """
    record, state = told.record, state_of(told.paths)
    problems: list[str] = []
    memory = part(lambda: memory_charts(told), {}, problems)
    curves = part(lambda: curve_charts(told), {}, problems)
    return render(
        "run.html",
        charts={**memory, **curves},
        record=record,
        state=state,
        facts=part(lambda: _facts(told), [], problems),
        commands=_commands(told, state),
        cards=figure_cards(told, problems),
        ended=_ended(told, state),
        memory_names=list(memory),
        curve_names=list(curves),
        verdict=part(lambda: _verdict(told), [], problems),
        settings=part(lambda: settings_rows(record), [], problems),
        answers=_answers(told),
        environment=part(lambda: environment_facts(told), [], problems),
        packages=sorted(_texts(told.group("environment", "packages")).items()),
        attempts=[_attempt(one) for one in record["attempts"]],
        notes=_notes(told, problems),
        version=own_version(),
        written=utc_now(),
    )


def _facts(told: Told) -> list[tuple[str, str]]:
    record, timing = told.record, told.group("timing_s")
    times = [f"{name} {duration(value)}" for name, value in timing.items() if isinstance(value, (int, float))]
    later = [f"{one.get('what')} {one.get('finished') or ''}: {_command(one)}" for one in record["later"]]
    again = [f"{one.get('time')}: {_command(one)}" for one in record["starts"][1:]]
    return [
        ("run", str(record["id"])),
        ("folder", str(told.paths.folder)),
        ("started", str(record["started"] or "")),
        ("finished", str(record["finished"] or "")),
        ("steps", ", ".join(map(str, told.group("config").get("steps") or ()))),
        ("time", ", ".join(times)),
        ("command", _command(record)),
        ("taken up again", "; ".join(again)),
        ("done later", "; ".join(later)),
    ]


def _command(started: Mapping[str, Any]) -> str:
    return shlex.join(map(str, started.get("command") or ()))


def _commands(told: Told, state: str) -> list[str]:
    folder = shlex.quote(str(told.paths.folder))
    verb = "infer" if told.group("config").get("steps") == [Step.infer.name] else "train"
    if state == COMPLETE:
        return [f"llmsys reproduce {folder}"]
    return [] if state == RUNNING else [f"llmsys {verb} resume={folder}"]


def _ended(told: Told, state: str) -> dict[str, Any] | None:
    """Say how a run ended that is not complete, with the end of its log."""
    if state in (COMPLETE, RUNNING):
        return None
    left = read_json(told.paths.status)
    left = left if isinstance(left, dict) else {}
    kind = f"It was stopped: {left['kind']}" if left.get("kind") else _KILLED
    said = str(left.get("text") or kind)
    return {"text": said, "log": _log_end(told.paths.log)}


def _log_end(path: Path) -> str:
    """Return the last lines of a log, however long it is."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - LOG_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    # a progress bar overwrites its own line
    lines = [line.rpartition("\r")[2] for line in _COLOURS.sub("", text).split("\n")]
    return "\n".join(line for line in lines[-LOG_LINES:] if line.strip())


def _verdict(told: Told) -> list[tuple[str, str]]:
    forecast, verdict = told.group("forecast"), told.group("verdict")
    answering = told.group("serving", "forecast")
    return [
        ("verdict", str(verdict.get("label") or "")),
        ("limit", _gib(verdict.get("budget_gib"))),
        ("needed", _gib(forecast.get("required_gib"))),
        ("left", _gib(verdict.get("headroom_gib"))),
        ("largest part", str(verdict.get("largest") or "")),
        ("cheapest change", str(verdict.get("fix") or "")),
        ("forecast by", str(forecast.get("tier") or "")),
        ("measured cases behind it", str((forecast.get("bands") or {}).get("class") or "")),
        ("notes", "; ".join(map(str, forecast.get("notes") or ()))),
        ("answering", str(answering.get("label") or "")),
        ("needed to answer", _gib(answering.get("device_used_gib"))),
        ("limit of answering", _gib(answering.get("budget_gib"))),
        ("notes on answering", "; ".join(map(str, answering.get("notes") or ()))),
    ]


def _answers(told: Told) -> list[dict[str, str]]:
    """Return the sample of answers, or the first of all where there is no sample."""
    rows = read_jsonl(told.paths.outputs) or read_jsonl(told.paths.generations)
    found = []
    for row in rows[:SHOWN_ANSWERS]:
        asked = [str(row[name]) for name in _ASKED if row.get(name)]
        answered = next((row[name] for name in _ANSWERED if row.get(name) is not None), "")
        wanted = next((row[name] for name in ("expected", "reference", "target") if row.get(name)), "")
        found.append(
            {
                "asked": _cut("\n".join(asked)),
                "answered": _cut(str(answered)),
                "wanted": _cut(str(wanted)),
                "error": _cut(str(row.get("error") or "")),
            }
        )
    return found


def _cut(text: str) -> str:
    more = len(text) - LONGEST_ANSWER
    return text if more <= 0 else f"{text[:LONGEST_ANSWER]} ... and {more:,} more characters"


def _attempt(attempt: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(key), _cut(str(value))) for key, value in attempt.items()]


def _notes(told: Told, problems: Sequence[str]) -> list[str]:
    notes: Sequence[Any] = told.record["notes"]
    changed = told.complete and is_edited(told.record)
    edited = ["The manifest was changed after it had been written"] if changed else []
    odd = [f"A part of the record is not as llmsys writes it, and is left out: {one}" for one in problems]
    return [*edited, *odd, *map(str, notes)]


def _texts(content: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in content.items()}


def _gib(value: Any) -> str:
    return f"{shown(value)} GiB" if isinstance(value, (int, float)) else ""
