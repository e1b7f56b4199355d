"""Throughput and total time of a sweep of inference runs against each swept setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsys_exp.report.infer_rows import Row, lines_of, swept
from llmsys_exp.report.plan_rows import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#f58518", "#b279a2", "#72b7b2")
PANELS = (
    ("tokens_per_s", "new tokens/s", "Throughput"),
    ("seconds", "seconds", "Time to answer all prompts"),
)


def sweep_figure(rows: Sequence[Row], key: str, title: str) -> Figure:
    """Draw both panels over the values of one setting; a line for each combination of the others."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    values, groups = swept(rows)[key], lines_of(rows, key)[: len(COLOURS)]
    drawn = {row["overrides"][key] for group in groups for row in group}
    used = [value for value in values if value in drawn]
    names = short_names(list(swept(rows)))
    for axes, (name, unit, heading) in zip(figure.subplots(1, 2), PANELS, strict=True):
        _panel(axes, groups, key, name, used)
        axes.set_xlabel(names[key])
        axes.set_ylabel(unit)
        axes.set_title(heading, loc="left", fontsize=11)
    varied = [other for other in names if other != key and _varies(groups, other)]
    if varied and len(groups) > 1:
        labels = [
            ", ".join(f"{names[other]} {group[0]['overrides'].get(other)}" for other in varied)
            for group in groups
        ]
        figure.axes[0].legend(figure.axes[0].lines, labels, frameon=False, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _panel(axes: Axes, groups: Sequence[Sequence[Row]], key: str, name: str, values: Sequence[str]) -> None:
    for colour, group in zip(COLOURS, groups, strict=False):
        points = [(values.index(row["overrides"][key]), row[name]) for row in group if row[name] is not None]
        if not points:
            continue
        places, heights = zip(*points, strict=True)
        axes.plot(places, heights, marker="o", color=colour, linewidth=1.6)
        if len(groups) == 1:
            for place, height in points:
                axes.annotate(
                    _short(height), (place, height), textcoords="offset points", xytext=(0, 7),
                    ha="center", fontsize=8, color=colour,
                )  # fmt: skip
    axes.set_xticks(range(len(values)), values)
    axes.set_ylim(0, 1.15 * axes.dataLim.y1 if axes.dataLim.y1 > 0 else 1)
    axes.margins(x=0.08)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _varies(groups: Sequence[Sequence[Row]], key: str) -> bool:
    return len({group[0]["overrides"].get(key) for group in groups}) > 1


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
