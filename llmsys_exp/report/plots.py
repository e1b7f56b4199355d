"""loss.png and memory.png, drawn once the job is done; a missing matplotlib costs the pictures only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from llmsys_exp.report.parallelism import parallelism_figure
from llmsys_exp.runs.files import disk_errors, read_jsonl
from llmsys_exp.runs.measured import MemoryRow
from llmsys_exp.runs.paths import RunPaths
from planner.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN, HELDOUT, PLANNED, MEASURED = "#4c78a8", "#e45756", "#9ecae9", "#4c78a8"
SMOOTH_FROM_STEPS = 40


def draw_plots(
    paths: RunPaths, *, title: str, results: Mapping[str, Any], memory: Sequence[MemoryRow]
) -> list[str]:
    """Draw what there is to draw and return notes about what could not be drawn."""
    rows = read_jsonl(paths.metrics)
    # lines of evaluations in mid-training carry no training loss
    steps = [row for row in rows if "train/loss" in row]
    midway = [(int(row["step"]), float(row["eval/loss"])) for row in rows if "eval/loss" in row]
    parallelism = results.get("parallelism")
    if not steps and not memory and not parallelism:
        return []
    if find_spec("matplotlib") is None:
        return ["No plots: matplotlib is not installed (pip install matplotlib)"]
    if steps:
        with disk_errors(paths.loss_plot):
            loss_figure(steps, results.get("train", {}), title, midway).savefig(paths.loss_plot, dpi=150)
    if memory:
        with disk_errors(paths.memory_plot):
            memory_figure(memory, title).savefig(paths.memory_plot, dpi=150)
    if parallelism:
        with disk_errors(paths.parallelism_plot):
            parallelism_figure(parallelism, title).savefig(paths.parallelism_plot, dpi=150)
    return []


def loss_figure(
    steps: Sequence[Mapping[str, Any]],
    train: Mapping[str, Any],
    title: str,
    midway: Sequence[tuple[int, float]] = (),
) -> Figure:
    """Draw training loss over steps, and held-out loss before, between and after as points."""
    figure, axes = _canvas(7.5, 4.2)
    numbers = [int(row["step"]) for row in steps]
    losses = [float(row["train/loss"]) for row in steps]
    smooth = len(losses) >= SMOOTH_FROM_STEPS
    axes.plot(
        numbers,
        losses,
        color=TRAIN,
        alpha=0.35 if smooth else 1.0,
        linewidth=1.2,
        label="training, each step",
    )
    if smooth:
        axes.plot(numbers, smoothed(losses), color=TRAIN, linewidth=2.2, label="training, smoothed")
    _heldout_points(axes, train.get("evaluation") or {}, midway, last_step=numbers[-1])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(
        "loss per image (nats)" if train.get("unit") == "image" else "loss per answer token (nats)"
    )
    axes.set_title(f"Loss: {title}", loc="left")
    axes.set_ylim(0, 1.08 * axes.dataLim.y1)
    axes.set_xlim(left=min(0, numbers[0]), right=numbers[-1] * 1.04 + 1)
    axes.legend(frameon=False)
    return figure


def memory_figure(rows: Sequence[MemoryRow], title: str) -> Figure:
    """Draw planned and measured memory as pairs of bars."""
    figure, axes = _canvas(7.5, 1.6 + 0.9 * len(rows), grid="x")
    places = list(range(len(rows)))
    pairs = (
        ("planned", PLANNED, -0.2, [row.planned_bytes / GIB for row in rows]),
        ("measured", MEASURED, 0.2, [row.measured_bytes / GIB for row in rows]),
    )
    for label, colour, shift, sizes in pairs:
        bars = axes.barh([place + shift for place in places], sizes, height=0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", padding=4)
    axes.set_yticks(places, [f"{row.name}\n({row.how})" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("GiB, of the rank that needs most where no node is named")
    axes.set_title(f"Memory: {title}", loc="left")
    axes.legend(frameon=False, loc="best")
    return figure


def smoothed(values: Sequence[float], weight: float = 0.7) -> list[float]:
    """Return the exponential moving average, corrected for its start."""
    result: list[float] = []
    average = 0.0
    for count, value in enumerate(values, start=1):
        average = weight * average + (1 - weight) * value
        result.append(average / (1 - weight**count))
    return result


def _canvas(width_in: float, height_in: float, *, grid: str = "both") -> tuple[Figure, Axes]:
    # The object interface needs no display and leaves pyplot's global state alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _heldout_points(
    axes: Axes, evaluation: Mapping[str, Any], midway: Sequence[tuple[int, float]], *, last_step: int
) -> None:
    ends = [
        (step, float(evaluation[moment]["loss"]))
        for moment, step in (("before", 0), ("after", last_step))
        if evaluation.get(moment)
    ]
    points = sorted({*ends, *midway})
    if not points:
        return
    steps, losses = zip(*points, strict=True)
    line = {"linestyle": "--", "linewidth": 1.0} if midway else {"linestyle": "none"}
    axes.plot(
        *(steps, losses),
        **line,
        **{"marker": "D", "markersize": 5 if midway else 7, "color": HELDOUT},
        **{"label": "held out", "zorder": 5, "clip_on": False},
    )
    for step, loss in ends:
        inwards = {"xytext": (9, 6), "ha": "left"} if step == 0 else {"xytext": (0, 9), "ha": "right"}
        axes.annotate(f"{loss:.3f}", (step, loss), textcoords="offset points", color=HELDOUT, **inwards)
