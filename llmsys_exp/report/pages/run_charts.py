"""The charts of one run: memory planned and measured, losses, speed and more over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.report.pages.figures import Chart, lines
from llmsys_exp.runs.files import read_jsonl
from llmsys_exp.runs.measured import PHASES
from llmsys_exp.runs.told import Told
from llmsys_exp.sweeps.results.best import is_number
from planner.units import GIB, MIB

CURVES = {
    "loss": ("Loss", "loss", {"train/loss": "training", "eval/loss": "held-out"}),
    "speed": ("Throughput", "a second", {"tokens_per_s": "tokens/s", "images_per_s": "images/s"}),
    "lr": ("Learning rate", "learning rate", {"lr": "learning rate"}),
    "grad": ("Gradient norm", "norm", {"grad_norm": "gradient norm"}),
    "score": ("Held-out score", "score", {"eval/score": "score"}),
    "memory": (
        "Memory of rank 0 over the steps",
        "GiB",
        {
            "mem/peak_bytes": "peak so far",
            "mem/allocated_bytes": "allocated",
            "mem/reserved_bytes": "reserved",
            "mem/rss_bytes": "process",
        },
    ),
}
"""Name -> caption, unit, and which figures of metrics.jsonl are drawn under which names."""


def curve_charts(told: Told) -> dict[str, Chart]:
    """Return curves over the steps, by name; evaluations before and after training are part of the loss."""
    rows = [row for row in read_jsonl(told.paths.metrics) if isinstance(row.get("step"), int)]
    charts: dict[str, Chart] = {}
    for name, (caption, unit, figures) in CURVES.items():
        scale = GIB if name == "memory" else 1
        series = {title: _series(rows, key, scale) for key, title in figures.items()}
        if name == "loss" and rows:
            series["held-out"] = _with_ends(series["held-out"], told, rows[-1]["step"])
        if any(len(points) > 1 for points in series.values()):
            charts[name] = {
                "caption": caption,
                "note": "",
                **lines("step", unit, series, may_be_log=name == "loss"),
            }
    return charts


def memory_charts(told: Told) -> dict[str, Chart]:
    """Return bars of what was planned beside what was measured, and of the parts of the forecast."""
    forecast, charts = told.group("forecast"), {}
    rows = [row for row in told.group("measured").get("rows") or () if is_number(row.get("planned_bytes"))]
    if rows:
        charts["measured"] = _bars(
            "Planned and measured",
            [(str(row.get("name")), row["planned_bytes"], _measured(row), _how(row)) for row in rows],
        )
    charts |= _measured_phases(told)
    answering = told.group("serving", "forecast")
    parts = (
        ("components", "Forecast by component, at the peak of a rank", forecast.get("components")),
        ("phases", "Forecast by phase, the peak of each", forecast.get("phases")),
        ("answering", "Forecast of answering by component, of one device", answering.get("components")),
        ("host", "Forecast of main memory of a node", forecast.get("host")),
        ("disk", "Forecast of disk", forecast.get("disk")),
    )
    for name, caption, content in parts:
        sizes = {key: size for key, size in _sizes(content).items() if size > 0}
        if sizes:
            charts[name] = _bars(caption, [(key, size * GIB, None, key) for key, size in sizes.items()])
    return charts


def _measured_phases(told: Told) -> dict[str, Chart]:
    """Return bars of what each phase came to on the rank that needed most, beside the phases planned."""
    ranks = told.group("results", "train").get("memory_per_rank")
    phases: dict[str, float] = {}
    key, how = "peak_rss_bytes", "growth of the process"
    listed = [phase for rank in ranks or () if isinstance(rank, dict) for phase in rank.get("phases") or ()]
    if any("peak_allocated_bytes" in phase for phase in listed):
        key, how = "peak_allocated_bytes", "allocated, CUDA allocator"
    for phase in listed:
        if is_number(phase.get(key)):
            name = str(phase.get("phase"))
            phases[name] = max(phase[key], phases.get(name, 0))
    if not phases:
        return {}
    planned = _sizes(told.group("forecast").get("phases"))
    covers = {measured: [planned[one] for one in names if one in planned] for _, measured, names in PHASES}
    rows = [(name, _most(covers.get(name)), size, how) for name, size in phases.items()]
    return {"measured-phases": _bars(f"By phase, the rank that needed most ({how})", rows)}


def _most(sizes_gib: Sequence[float] | None) -> float | None:
    return max(sizes_gib) * GIB if sizes_gib else None


def _series(rows: Sequence[Mapping[str, Any]], key: str, scale: int) -> list[tuple[float, float]]:
    return [(row["step"], row[key] / scale) for row in rows if is_number(row.get(key))]


def _with_ends(points: list[tuple[float, float]], told: Told, last: int) -> list[tuple[float, float]]:
    """Add the held-out losses from before and after training, which metrics.jsonl may not have."""
    evaluation = told.group("results", "train", "evaluation")
    found = dict(points)
    for step, when in ((0, "before"), (last, "after")):
        loss = (evaluation.get(when) or {}).get("loss")
        if is_number(loss):
            found.setdefault(step, loss)
    return sorted(found.items())


def _bars(caption: str, rows: Sequence[tuple[str, float | None, float | None, str]]) -> Chart:
    most = max(max(planned or 0, measured or 0) for _, planned, measured, _ in rows)
    unit, scale = ("GiB", GIB) if most >= GIB / 10 else ("MiB", MIB)
    return {
        "kind": "bars",
        "caption": caption,
        "note": "",
        "unit": unit,
        "rows": [
            {
                "name": name.strip(),
                "planned": None if planned is None else planned / scale,
                "measured": None if measured is None else measured / scale,
                "said": said,
            }
            for name, planned, measured, said in rows
        ],
    }


def _measured(row: Mapping[str, Any]) -> float | None:
    measured = row.get("measured_bytes")
    return measured if is_number(measured) else None


def _how(row: Mapping[str, Any]) -> str:
    planned, measured = row["planned_bytes"], _measured(row)
    off = "" if not planned or measured is None else f"{100 * (measured / planned - 1):+.1f} % of the plan\n"
    return f"{off}measured as: {row.get('how', '')}"


def _sizes(content: Any) -> dict[str, float]:
    if not isinstance(content, Mapping):
        return {}
    return {str(key): float(size) for key, size in content.items() if is_number(size)}
