"""All rows of a run that was done again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmsys_exp.reproduce.drift import FORECAST
from llmsys_exp.reproduce.judge import inference, training
from llmsys_exp.reproduce.judge.row import Row, number_row
from llmsys_exp.reproduce.judge.training import Terms
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.reproduce.series import Log, read_log
from llmsys_exp.reproduce.tolerances import FORECAST as FORECAST_BOUND
from llmsys_exp.reproduce.tolerances import Relation, Tolerance

FORECASTS = ("peak_allocated_gib", "peak_reserved_gib", "host_peak_gib")


def judge(logged: Logged, found: Logged, relation: Relation) -> list[Row]:
    """Compare two records of a run and return a row for each metric that the logged one has."""
    terms = terms_of(logged, found, relation)
    if not has_log(logged):
        terms = replace(terms, whole=False)
    rows: list[Row | None] = []
    if "train" in logged.section("results") or not logged.ended:
        rows += training.step_rows(steps_of(logged), steps_of(found), terms)
        rows += training.result_rows(logged.result("train"), found.result("train"), terms)
        rows += training.memory_rows(logged.section("measured"), found.section("measured"), terms)
    if "export" in logged.section("results"):
        rows += training.export_rows(logged.result("export"), found.result("export"), terms)
    if "infer" in logged.section("results"):
        rows += inference.result_rows(logged.result("infer"), found.result("infer"), terms)
        rows += _answers(logged, found, terms)
    rows += _forecasts(logged.section("forecast"), found.section("forecast"), terms)
    return [row for row in rows if row is not None]


def terms_of(logged: Logged, found: Logged, relation: Relation) -> Terms:
    """Return what tolerances depend on; of two types the coarser one."""
    dtypes = {str((one.config.get("training") or {}).get("dtype", "fp32")) for one in (logged, found)}
    method = logged.config.get("method") or {}
    lora = method.get("lora") or {}
    adapts = method.get("kind") in ("lora", "qlora")
    return Terms(
        relation=relation,
        dtype="fp32" if dtypes == {"fp32"} else "16 bit",
        dropout=float(lora.get("dropout") or 0.0) if adapts else 0.0,
        on_gpu=logged.section("inputs").get("device") == "cuda",
        whole=logged.ended,
    )


def has_log(logged: Logged) -> bool:
    """Whether the log of a run lies beside its manifest."""
    return logged.paths is not None and logged.paths.metrics.is_file()


def steps_of(logged: Logged) -> Log:
    """Return the log of a run; where only its manifest is there, the two losses that it tells."""
    if logged.paths is not None and has_log(logged):
        return read_log(logged.paths.metrics)
    train, log = logged.result("train"), Log()
    loss: Mapping[str, Any] = train.get("loss") or {}
    for step, value in ((1, loss.get("first")), (train.get("steps"), loss.get("last"))):
        if isinstance(step, int) and isinstance(value, float) and step not in log.losses.steps:
            log.losses.add(step, value)
    return log


def _answers(logged: Logged, found: Logged, terms: Terms) -> Iterator[Row]:
    if logged.paths is None or found.paths is None:
        return
    sampling = ((logged.config.get("inference") or {}).get("sampling")) or {}
    sampled = float(sampling.get("temperature") or 0.0) > 0
    old, new = (inference.read_answers(one.generations) for one in (logged.paths, found.paths))
    yield from inference.answer_rows(old, new, terms, sampled=sampled)


def _forecasts(old: Mapping[str, Any], new: Mapping[str, Any], terms: Terms) -> Iterator[Row | None]:
    bound = None if terms.relation is Relation.other_world else FORECAST_BOUND[0]
    for key in FORECASTS:
        name = f"forecast: {key.removesuffix('_gib').replace('_', ' ')}, GiB"
        yield number_row(name, FORECAST, old.get(key), new.get(key), Tolerance(bound, FORECAST_BOUND[1]))
