"""A training run again: losses step by step, learning rate, data, evaluation, weights, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmsys_exp.reproduce.drift import (
    EVALUATION,
    FIRST,
    LATER,
    LENGTH,
    MEMORY,
    PARAMETERS,
    RATE,
    SPEED,
    TOKENS,
    WEIGHTS,
)
from llmsys_exp.reproduce.judge.row import Row, number_row, same_row, shown
from llmsys_exp.reproduce.series import Log, Series
from llmsys_exp.reproduce.tolerances import (
    EXACT,
    RATE_BOUND,
    Relation,
    Tolerance,
    loss_tolerance,
    memory_tolerance,
    score_tolerance,
)
from llmsys_exp.reproduce.tolerances import SPEED as SPEED_BOUND


@dataclass(frozen=True)
class Terms:
    """What tolerances depend on."""

    relation: Relation
    dtype: str
    dropout: float
    on_gpu: bool
    whole: bool = True
    """Whether all steps are known; of a run that was killed, or of a manifest alone, it is a part of them."""

    def loss(self, *, first: bool) -> Tolerance:
        """Return the bound on a loss."""
        return loss_tolerance(self.relation, first=first, dtype=self.dtype, dropout=self.dropout)


def step_rows(logged: Log, found: Log, terms: Terms) -> Iterator[Row]:
    """Compare figures of single steps at the steps that were logged; of each kind the worst is told."""
    yield from _length(logged.losses, found.losses, terms)
    old, new = logged.losses.by_step(), found.losses.by_step()
    shared = sorted(old.keys() & new.keys())
    if shared and shared[0] == 1:
        row = number_row("loss of step 1", FIRST, old[1], new[1], terms.loss(first=True))
        yield from [row] if row else []
    later = [step for step in shared if step > 1]
    yield from _worst("loss, worst of {n} steps", LATER, old, new, later, terms.loss(first=False))
    old, new = logged.rates.by_step(), found.rates.by_step()
    both = sorted(old.keys() & new.keys())
    yield from _worst("learning rate, worst of {n} steps", RATE, old, new, both, Tolerance(*RATE_BOUND))
    old, new = logged.evaluations.by_step(), found.evaluations.by_step()
    both = sorted(old.keys() & new.keys())
    name = "held-out loss in mid-training, worst of {n}"
    yield from _worst(name, EVALUATION, old, new, both, terms.loss(first=False))


def result_rows(old: Mapping[str, Any], new: Mapping[str, Any], terms: Terms) -> Iterator[Row | None]:
    """Compare what the training worker left in its results."""
    yield from _data(old, new)
    exact = Tolerance(*EXACT)
    unit = old.get("unit", "token")
    yield number_row("optimizer steps", LENGTH, old.get("steps"), new.get("steps"), exact)
    yield number_row(f"{unit}s trained on", TOKENS, old.get(f"{unit}s"), new.get(f"{unit}s"), exact)
    key = "trainable_parameters"
    yield number_row("trained parameters", PARAMETERS, old.get(key), new.get(key), exact)
    for at in ("before", "after"):
        yield from _evaluation(at, old, new, terms)
    speed = Tolerance(*SPEED_BOUND)
    key = f"{unit}s_per_s"
    was, now = ((one.get("speed") or {}).get(key, one.get(key)) for one in (old, new))
    yield number_row(f"{unit}s a second", SPEED, was, now, speed)


def export_rows(old: Mapping[str, Any], new: Mapping[str, Any], terms: Terms) -> Iterator[Row | None]:
    """Compare the written weights: their hashes, where the same bits are asked for."""
    was, now = old.get("weights_sha256"), new.get("weights_sha256")
    if not isinstance(was, dict) or not isinstance(now, dict):
        return
    if terms.relation is Relation.same_bits:
        yield same_row("written weights", WEIGHTS, _digest(was), _digest(now), "every operator is the same")
        return
    said = "none" if was == now else "differs"
    yield Row("written weights", WEIGHTS, _digest(was), _digest(now), said, "not judged", None, "last digits")


def memory_rows(old: Mapping[str, Any], new: Mapping[str, Any], terms: Terms) -> Iterator[Row | None]:
    """Compare the peaks that were measured; those of single phases are left to the report."""
    then = _by_name(old)
    now = _by_name(new)
    for name, size in then.items():
        on_gpu = terms.on_gpu and "main memory" not in name
        tolerance = memory_tolerance(terms.relation, on_gpu=on_gpu)
        yield number_row(f"{name}, bytes", MEMORY, size, now.get(name), tolerance)


def _length(old: Series, new: Series, terms: Terms) -> Iterator[Row]:
    steps, found = sorted(set(old.steps)), sorted(set(new.steps))
    if not steps:
        return
    same = steps == found if terms.whole else set(steps) <= set(found)
    gap = "none" if same else f"{len(set(steps) ^ set(found))} steps"
    reason = "follows from settings and data" if terms.whole else "a part of the steps is known"
    bound = "exact" if terms.whole else "at least"
    yield Row("logged steps", LENGTH, len(steps), len(found), gap, bound, same, reason)


def _worst(
    name: str,
    part: str,
    old: Mapping[int, float],
    new: Mapping[int, float],
    steps: list[int],
    tolerance: Tolerance,
) -> Iterator[Row]:
    if not steps:
        return
    worst = max(steps, key=lambda step: tolerance.distance(old[step], new[step]))
    gap = tolerance.distance(old[worst], new[worst])
    passed = tolerance.allows(old[worst], new[worst])
    said = name.format(n=len(steps)) + (f" (step {worst})" if gap else "")
    yield Row(
        said, part, old[worst], new[worst], shown(gap, tolerance), tolerance.words, passed, tolerance.reason
    )


def _evaluation(
    at: str, old: Mapping[str, Any], new: Mapping[str, Any], terms: Terms
) -> Iterator[Row | None]:
    was, now = ((one.get("evaluation") or {}).get(at) or {} for one in (old, new))
    tolerance = terms.loss(first=at == "before")
    yield number_row(f"held-out loss {at}", EVALUATION, was.get("loss"), now.get("loss"), tolerance)
    name = f"held-out {was.get('score_name', 'score')} {at}"
    yield number_row(name, EVALUATION, was.get("score"), now.get("score"), score_tolerance(terms.relation))
    rows = f"held-out rows {at}"
    yield number_row(rows, EVALUATION, was.get("rows"), now.get("rows"), Tolerance(*EXACT))


def _data(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Row | None]:
    """Compare the fingerprints that the workers took of what they read."""
    was, now = old.get("data") or {}, new.get("data") or {}
    if not was:
        return
    for name, key in (("template", "template_sha256"), ("tokenizer", "tokenizer_sha256")):
        yield same_row(name, TOKENS, _cut(was.get(key)), _cut(now.get(key)))
    for part in ("train", "heldout"):
        then, found = was.get(part) or {}, now.get(part) or {}
        where = TOKENS if part == "train" else EVALUATION
        yield same_row(f"{part} rows", where, then.get("rows"), found.get("rows"))
        yield same_row(f"{part} data", where, _cut(then.get("sha256")), _cut(found.get("sha256")))


def _by_name(measured: Mapping[str, Any]) -> dict[str, Any]:
    rows = [row for row in measured.get("rows") or () if isinstance(row, Mapping)]
    return {
        str(row.get("name")): row.get("measured_bytes")
        for row in rows
        if not str(row.get("name")).startswith(" ")
    }


def _digest(hashes: Mapping[str, Any]) -> str:
    return " ".join(str(_cut(hashes[name])) for name in sorted(hashes))


def _cut(digest: Any) -> str | None:
    return None if digest is None else str(digest)[:12]
