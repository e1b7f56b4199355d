"""Recommendations as text: one table a method, then what faster settings lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.calibrate.apply import PREFIX as CALIBRATED
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.recommend import Advice
from llmsys_exp.plan.recommend_simulated import SimulatedAdvice, Way
from llmsys_exp.report.console import Console, gib
from planner.search import Answer, Miss
from planner.training_case import TrainingCase

HEAD = ["", "stage", "offload", "recompute", "liger", "batch", "needs", "left", "host", "s/step", "tokens/s"]
SIMULATED_HEAD = ["", "stage", "offload", "recompute", "batch", "needs", "left", "host"]
RIGHT = (6, 7, 8, 9, 10)


def show(console: Console, advice: Sequence[Advice | SimulatedAdvice]) -> None:
    """Write every method's answers, ranked or simulated."""
    simulated = [item for item in advice if isinstance(item, SimulatedAdvice)]
    if simulated:
        show_simulated_advice(console, simulated)
    else:
        show_advice(console, [item for item in advice if isinstance(item, Advice)])


def show_advice(console: Console, advice: list[Advice]) -> None:
    """Write every method's answers."""
    for item in advice:
        console.title(item.method)
        if item.found is None:
            console.line(f"  not possible: {item.refused}")
            continue
        if item.found.answers:
            rows = [_row(item, number, answer) for number, answer in enumerate(item.found.answers, start=1)]
            console.table([HEAD, *rows], right=RIGHT)
        else:
            console.line("  " + _nothing(item))
        for miss in item.faster:
            console.line("  " + _missed(item, miss))
    answers = [answer for item in advice if item.found is not None for answer in item.found.answers]
    notes = [note for answer in answers for note in answer.forecast.notes if note.startswith(CALIBRATED)]
    on_cpu = any(item.config.hardware.gpu == CPU for item in advice)
    times = "Times on a CPU only rank the settings." if on_cpu and not notes else "Times are estimates."
    console.line()
    console.line(
        "Batch: micro-batch x accumulation on each GPU. Needs, left: GiB of one GPU; host: GiB of a node's "
        f"main memory. {times}"
    )
    for note in dict.fromkeys(notes):
        console.line(f"{note}.")


def show_simulated_advice(console: Console, advice: list[SimulatedAdvice]) -> None:
    """Write the usual ways that fit, method by method, of a family whose speed nothing forecasts."""
    for item in advice:
        console.title(item.method)
        if not item.ways:
            console.line(f"  not possible: {item.refused}")
        elif not item.fitting:
            console.line("  " + _no_way(item))
        else:
            rows = [_way_row(number, way) for number, way in enumerate(item.fitting, start=1)]
            console.table([SIMULATED_HEAD, *rows], right=(5, 6, 7))
    simulated = sum(item.tried for item in advice)
    console.line()
    console.line(
        "Batch: micro-batch x accumulation on each GPU. Needs, left: GiB of one GPU; host: GiB of a node's "
        f"main memory. {simulated} simulations. Speed is not forecast: the ways stand as they usually do, "
        "the fastest first."
    )


def _way_row(number: int, way: Way) -> list[str]:
    settings, required = way.settings(), way.forecast.required_bytes
    return [
        f"{number}" if way.label == "fits" else f"{number} {way.label}",
        str(settings["zero.stage"]),
        _offload(settings),
        "yes" if settings["training.gradient_checkpointing"] else "no",
        f"{settings['training.micro_batch']} x {settings['training.grad_accum']}",
        gib(required),
        gib(way.verdict.budget_bytes - required),
        gib(way.forecast.host_peak_bytes),
    ]


def _offload(settings: Mapping[str, Any]) -> str:
    if settings["offload.param"] != "none":
        return "all"
    return "none" if settings["offload.optimizer"] == "none" else "optimizer"


def _no_way(item: SimulatedAdvice) -> str:
    way = item.ways[0]
    settings = way.settings()
    recompute = "recomputing" if settings["training.gradient_checkpointing"] else "keeping activations"
    return (
        f"none of the usual ways fits; the smallest needs {gib(way.forecast.required_bytes)} GiB of the "
        f"{gib(way.verdict.budget_bytes)} GiB there are (stage {settings['zero.stage']}, offload "
        f"{_offload(settings)}, {recompute}, micro-batch {settings['training.micro_batch']})"
    )


def describe(case: TrainingCase) -> str:
    """The memory settings of a case in a few words."""
    words = [f"stage {case.zero_stage}"]
    if case.offload_optimizer != "none":
        words.append("all offloaded" if case.offload_param != "none" else "optimizer offloaded")
    words.append("recomputing" if case.gradient_checkpointing else "keeping activations")
    if case.liger:
        words.append("Liger")
    return ", ".join([*words, f"micro-batch {case.micro_batch}"])


def _row(item: Advice, number: int, answer: Answer) -> list[str]:
    case, budget = answer.case, item.room.gpu_bytes
    required = answer.forecast.required_bytes
    offload = "none" if case.offload_optimizer == "none" else "optimizer"
    if case.offload_param != "none":
        offload = "all"
    label = "" if answer.label == "fits" else f" {answer.label}"
    return [
        f"{number}{label}",
        str(case.zero_stage),
        offload,
        "yes" if case.gradient_checkpointing else "no",
        "yes" if case.liger else "no",
        f"{case.micro_batch} x {case.grad_accum}",
        gib(required),
        "" if budget is None else gib(budget - required),
        gib(answer.forecast.host_peak_bytes),
        f"{answer.step_s:.2f}",
        f"{answer.tokens_per_s:,.0f}",
    ]


def _nothing(item: Advice) -> str:
    assert item.found is not None
    smallest, budget = item.found.smallest, item.room.gpu_bytes
    room = "" if budget is None else f" of the {gib(budget)} GiB there are"
    return (
        f"none of {item.found.considered} settings fits; the smallest needs about "
        f"{gib(smallest.peak_bytes)} GiB{room} ({describe(smallest.case)})"
    )


def _missed(item: Advice, miss: Miss) -> str:
    assert item.found is not None
    limit = item.room.host_bytes if miss.where == "host" else item.room.gpu_bytes
    best = max((answer.tokens_per_s for answer in item.found.answers), default=0.0)
    faster = f"{miss.option.tokens_per_s / best:.2f} x as fast, but " if best else ""
    where = "of main memory " if miss.where == "host" else ""
    room = "" if limit is None else f" of {gib(limit)}"
    about = "" if miss.forecast is not None else "about "
    need = f"needs {about}{gib(miss.needs_bytes)} GiB {where}".rstrip()
    return f"{describe(miss.option.case)}: {faster}{need}{room}"
