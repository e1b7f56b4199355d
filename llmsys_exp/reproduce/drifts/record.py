"""Is the record itself as it was written: manifest, log, job.json, results?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.evidence.secrets import LEFT_OUT
from llmsys_exp.reproduce.drift import (
    ALL_NUMBERS,
    ANSWERS,
    EVALUATION,
    FIRST,
    LATER,
    LENGTH,
    MEMORY,
    NUMBERS_PARTS,
    RATE,
    TOKENS,
    Drift,
    Effect,
    short,
)
from llmsys_exp.reproduce.guard import inside
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.reproduce.series import Log, read_log
from llmsys_exp.runs.files import file_hash, read_json
from llmsys_exp.runs.resume_rules import flat

FROM_LOG = (FIRST, LATER, RATE, LENGTH)
_OF_FILE: Mapping[str, tuple[str, ...]] = {
    "metrics.jsonl": FROM_LOG,
    "generations.jsonl": (ANSWERS,),
    "job.json": NUMBERS_PARTS,
}
_JUDGED = ("train", "infer")
LOSS_DIGITS = 1e-12
"""The log and the results hold the same numbers, written by the same worker."""


def record_drifts(logged: Logged) -> Iterator[Drift]:
    """Yield what was changed in the record of a run since it was written."""
    if logged.is_edited:
        yield Drift(
            "record",
            "manifest.json",
            "manifest.json was edited by hand since it was written: its figures cannot be relied on",
            Effect.NUMBERS,
            (*NUMBERS_PARTS, MEMORY),
            do="Put the file back as llmsys wrote it; with --check it is read all the same",
            blocks=True,
        )
    yield from _starts(logged)
    if logged.paths is None:
        return
    yield from _settings(logged)
    yield from _results(logged)
    hashed = list(_hashed(logged, logged.paths.folder))
    yield from hashed
    if logged.ended and logged.result("train"):
        log = read_log(logged.paths.metrics)
        yield from _length(log, logged, known={one.key for one in hashed})
        yield from _ends(log, logged.result("train"))


def _starts(logged: Logged) -> Iterator[Drift]:
    """A run that was taken up again ran in parts; one from the beginning need not come to the same."""
    starts = [one for one in logged.manifest.get("starts") or () if isinstance(one, Mapping)]
    later = {text: None for one in starts[1:] for text in one.get("overrides") or ()}
    if later:
        what = f"the run was taken up again with {' '.join(later)}: what came before ran without"
        yield Drift("record", "starts", what, Effect.NUMBERS, (*FROM_LOG, EVALUATION))
    codes = {json.dumps(one.get("code"), sort_keys=True) for one in starts}
    if len(codes) > 1:
        what = f"the run was started {len(starts)} times, with {len(codes)} states of the code"
        yield Drift("record", "code", what, Effect.NUMBERS, ALL_NUMBERS)


def _settings(logged: Logged) -> Iterator[Drift]:
    """Manifest and job.json were written from the same settings."""
    job = read_json(logged.paths.job) if logged.paths else None
    if not isinstance(job, dict) or not isinstance(job.get("config"), dict):
        yield Drift("record", "job.json", "job.json is missing or broken", Effect.NOTHING)
        return
    told, there = flat(logged.config), flat(job["config"])
    for key in sorted({*told, *there}):
        if told.get(key) == there.get(key) or told.get(key) == LEFT_OUT:
            continue
        yield Drift(
            "record",
            key,
            f"{key} is {short(told.get(key))} in manifest.json and {short(there.get(key))} in job.json: "
            f"one of them was edited",
            Effect.NUMBERS,
            NUMBERS_PARTS,
            then=there.get(key),
            now=told.get(key),
        )


def _results(logged: Logged) -> Iterator[Drift]:
    """Each file below results/ is what the manifest repeats."""
    if logged.paths is None:
        return
    for step, told in logged.section("results").items():
        there = read_json(logged.paths.result(step))
        if not isinstance(there, dict):
            yield Drift("record", f"results/{step}.json", f"results/{step}.json is missing", Effect.NOTHING)
        elif there != told:
            if step not in _JUDGED:  # `llmsys export` may have been asked again since
                continue
            keys = [key for key in {**there, **told} if there.get(key) != told.get(key)]
            yield Drift(
                "record",
                f"results/{step}.json",
                f"results/{step}.json and manifest.json differ in {', '.join(sorted(keys)[:4])}: "
                f"one of them was edited",
                Effect.NUMBERS,
                tuple(dict.fromkeys(part for key in keys for part in _part_of(key))),
            )


def _part_of(key: str) -> tuple[str, ...]:
    parts: Mapping[str, tuple[str, ...]] = {
        "evaluation": (EVALUATION,),
        "loss": (FIRST, LATER),
        "first_step": (FIRST,),
        "tokens": (TOKENS,),
        "data": (TOKENS,),
        "steps": (LENGTH,),
        "memory_per_rank": (MEMORY,),
        "score": (ANSWERS,),
    }
    return parts.get(key, ALL_NUMBERS)


def _hashed(logged: Logged, folder: Path) -> Iterator[Drift]:
    """Files that the manifest holds a hash of."""
    for name, was in logged.section("records").items():
        path = inside(folder, name, "A file of the record")
        if not isinstance(was, Mapping) or not was.get("sha256"):
            continue
        shows_in = _OF_FILE.get(name, ())
        effect = Effect.NUMBERS if shows_in else Effect.NOTHING
        if not path.is_file():
            yield Drift("record", name, f"{name} is missing", effect, shows_in, then=was["sha256"])
        elif (found := file_hash(path)) != was["sha256"]:
            said = "is shorter" if path.stat().st_size < (was.get("bytes") or 0) else "was changed"
            what = f"{name} {said} since the run ended"
            yield Drift("record", name, what, effect, shows_in, was["sha256"], found)


def _length(log: Log, logged: Logged, *, known: set[str]) -> Iterator[Drift]:
    """As many steps are in the log as settings say."""
    training = logged.config.get("training") or {}
    steps, every = logged.result("train").get("steps"), training.get("log_every") or 1
    resumed = logged.result("train").get("resumed_from")  # other parts may have been logged at other steps
    if resumed or not isinstance(steps, int) or not isinstance(every, int) or every < 1:
        return
    wanted = {step for step in range(1, steps + 1) if (step - 1) % every == 0}
    missing = len(wanted - set(log.losses.steps))
    if missing or log.broken_lines:
        broken = f", {log.broken_lines} lines are no figures" if log.broken_lines else ""
        what = f"metrics.jsonl lacks {missing} of the {len(wanted)} steps that were logged{broken}"
        if "metrics.jsonl" in known and not missing:
            return
        yield Drift("record", "metrics.jsonl", what, Effect.NUMBERS, FROM_LOG, len(wanted), len(log.losses))


def _ends(log: Log, train: Mapping[str, Any]) -> Iterator[Drift]:
    """First and last loss stand both in the log and in the results."""
    told, there = train.get("loss") or {}, log.losses.by_step()
    for name, step in (("first", 1), ("last", train.get("steps"))):
        value = told.get(name)
        if isinstance(value, float) and step in there and not _near(value, there[step]):
            said = f"{there[step]:.6g} in metrics.jsonl and {value:.6g} in the results"
            what = f"the loss of step {step} is {said}"
            part = FIRST if step == 1 else LATER
            yield Drift("record", "metrics.jsonl", what, Effect.NUMBERS, (part,), value, there[step])


def _near(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= LOSS_DIGITS * abs(one)
