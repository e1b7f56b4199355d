"""Pictures of plans: stacked bars against the limit, or which of them to draw instead."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmsys_exp.errors import UserError
from llmsys_exp.report.plan_output import MOST_BARS, full_axes
from llmsys_exp.report.plan_rows import DOES_NOT_FIT, FAILED, TIGHT, Row, axes_of, highest_phases, short_names
from planner.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any colour vision.
COLOURS = {
    "weights": "#0072B2",
    "fp32 master weights": "#56B4E9",
    "optimizer states": "#009E73",
    "gradients": "#D55E00",
    "activations": "#E69F00",
    "activation gradients": "#CC79A7",
}
"""Parts in the order in which they are stacked: what stays between steps first."""

SPARE_COLOURS = ("#F0E442", "#8C6D31", "#5254A3", "#56B4E9", "#D55E00", "#009E73")
REST, BEYOND, LIMIT, PHASE = "#999999", "#FFFFFF", "#000000", "#7F9DB9"
NAMED_PARTS = 6
LEAST_SHARE = 0.01  # of the largest bar; smaller parts are summed
WIDTH_IN = 9.5
LETTER_IN = 0.083  # a letter of the labels, about
LETTERS_PER_IN = 13  # of the lines below a title, beside the labels of the axis
FIGURE_SPACE = "\u2007"  # as wide as a digit
MARKS = {TIGHT: "\u2248 ", DOES_NOT_FIT: "\u00d7 "}
"""Signs before a figure, for readers who do not see the colours."""


def draw(rows: Sequence[Row], *, axes: tuple[str, str] | None) -> tuple[Figure, str]:
    """Draw what suits the rows; return the figure and what it shows.

    One row: its parts and phases. Two overrides that differ, or two named ones: a map. Else: bars.
    """
    from llmsys_exp.report.plan_map import map_figure

    varied = list(axes_of(rows))
    if axes is not None:
        across, down = full_axes(axes, varied)
        others = [key for key in varied if key not in (across, down)]
        what = f"map of {down} and {across}"
        what += f"; each cell shows the best over {', '.join(others)}" if others else ""
        return map_figure(rows, across=across, down=down), what
    if len(varied) == 2:
        down, across = varied
        return map_figure(rows, across=across, down=down), f"map of {down} and {across}"
    if len(rows) == 1:
        return single_figure(rows[0]), "parts at the peak and peak of each phase"
    if len(rows) > MOST_BARS:
        raise UserError(f"{len(rows)} bars cannot be read", do="Choose two overrides with --axes ACROSS,DOWN")
    hint = "; --axes ACROSS,DOWN draws a map" if len(varied) > 2 else ""
    return bars_figure(rows), f"a bar for each point{hint}"


def picture_bytes(figure: Figure, suffix: str) -> bytes:
    """Return a figure as a file's content; the same figure gives the same bytes."""
    import matplotlib

    kind = suffix.lower().lstrip(".")
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "llmsys"}):
        figure.savefig(data, format=kind, dpi=150, metadata=dated.get(kind))
    return data.getvalue()


def bars_figure(rows: Sequence[Row]) -> Figure:
    """Draw a stacked bar for each row against the limit."""
    figure = canvas(WIDTH_IN, 1.9 + 0.33 * len(rows))
    axes = bare_axes(figure.add_subplot())
    _stack(axes, rows)
    varied = list(axes_of(rows))
    names = short_names(varied)
    labels = [", ".join(row["overrides"].get(key, "-") for key in varied) or "plan" for row in rows]
    left_in = 0.3 + LETTER_IN * max(map(len, [*labels, ", ".join(names.values())]))
    axes.set_yticks(range(len(rows)), labels)
    axes.text(-0.015, 1.01, ", ".join(names.values()), transform=axes.transAxes, **_NAMES)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("GiB")
    _say_results(axes, rows)
    _draw_limits(axes, rows)
    set_title(axes, "Memory of one rank at its peak", rows, WIDTH_IN - left_in)
    if axes.get_legend_handles_labels()[0]:  # there is nothing to explain where every point failed
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def single_figure(row: Row) -> Figure:
    """Draw the parts of one plan, and the peak of each of its phases."""
    phases = highest_phases(row["phases"])
    figure = canvas(WIDTH_IN, 2.9 + 0.33 * len(phases))
    grid = figure.add_gridspec(2, 1, height_ratios=[1.3, max(1, len(phases)) * 0.75])
    above = bare_axes(figure.add_subplot(grid[0]))
    below = bare_axes(figure.add_subplot(grid[1], sharex=above))
    _stack(above, [row], sizes=True)
    above.set_yticks([0], ["at the peak"])
    above.set_ylim(0.5, -0.5)
    above.tick_params(labelbottom=False)
    _say_results(above, [row])
    sizes = [size / GIB for size in phases.values()]
    below.barh(range(len(phases)), sizes, 0.66, color=PHASE)
    for place, text in enumerate(_aligned(sizes)):
        below.text(1.01, place, text, transform=below.get_yaxis_transform(), va="center", fontsize=9)
    below.set_yticks(range(len(phases)), list(phases))
    below.set_ylim(len(phases) - 0.5, -0.5)
    below.set_ylabel("phase")
    below.set_xlabel("GiB")
    for axes in (above, below):
        _draw_limits(axes, [row], named=axes is above)
    set_title(above, "Memory of one rank", [row], WIDTH_IN - 1.5)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def canvas(width_in: float, height_in: float) -> Figure:
    """Return an empty figure that needs no display."""
    # The object interface leaves pyplot's global state alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def bare_axes(axes: Axes) -> Axes:
    """Take away what holds no data; leave a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def set_title(axes: Axes, text: str, rows: Sequence[Row], room_in: float, *, more: str = "") -> None:
    """Write a title, and below it what all rows have in common and what more there is to say.

    Args:
        axes: where to.
        text: the title.
        rows: what is drawn.
        room_in: inches from the axes' left edge to the right edge of the picture.
        more: a further line.
    """
    varied = axes_of(rows)
    same = " ".join(f"{key}={value}" for key, value in rows[0]["overrides"].items() if key not in varied)
    lines: list[str] = []
    for paragraph in (same, more):
        lines += textwrap.wrap(
            paragraph, max(20, int(room_in * LETTERS_PER_IN)), break_long_words=False, break_on_hyphens=False
        )
    axes.set_title("\n".join(lines), loc="left", fontsize=9, color="#444444")
    axes.figure.suptitle(text, x=0.01, ha="left", fontsize=12, fontweight="bold")


def _stack(axes: Axes, rows: Sequence[Row], *, sizes: bool = False) -> None:
    """Draw the parts end to end, then what the allocator needs beyond them."""
    named = _named_parts(rows)
    places = list(range(len(rows)))
    lefts = [0.0] * len(rows)

    def add(label: str, values: Sequence[float], colour: str, **style: Any) -> None:
        nonlocal lefts
        if any(value > 0 for value in values):
            shown = f"{label} {values[0]:.2f}" if sizes else label
            axes.barh(places, values, 0.72, lefts, color=colour, label=shown, **style)
            lefts = [left + value for left, value in zip(lefts, values, strict=True)]

    for name, colour in named.items():
        add(name, [row["components"].get(name, 0) / GIB for row in rows], colour)
    rest = [sum(v for k, v in row["components"].items() if k not in named) / GIB for row in rows]
    add("smaller parts", rest, REST)
    beyond = [max(0, (row["required_bytes"] or 0) - (row["allocated_bytes"] or 0)) / GIB for row in rows]
    add("needed beyond live tensors", beyond, BEYOND, edgecolor="#555555", hatch="////", linewidth=0.5)


def _named_parts(rows: Sequence[Row]) -> dict[str, str]:
    """Return the parts that are largest anywhere, each with its colour."""
    largest: dict[str, int] = {}
    for row in rows:
        for name, size in row["components"].items():
            largest[name] = max(size, largest.get(name, 0))
    least = LEAST_SHARE * max([row["allocated_bytes"] or 0 for row in rows], default=0)
    names = [name for name in sorted(largest, key=lambda name: -largest[name]) if largest[name] >= least]
    kept, order = names[:NAMED_PARTS], list(COLOURS)
    return _colours(sorted(kept, key=lambda name: order.index(name) if name in order else len(order)))


def _colours(names: Sequence[str]) -> dict[str, str]:
    taken = {COLOURS[name] for name in names if name in COLOURS}
    spare = iter([colour for colour in SPARE_COLOURS if colour not in taken])
    return {name: COLOURS.get(name) or next(spare) for name in names}


def _say_results(axes: Axes, rows: Sequence[Row]) -> None:
    """Write figure and verdict beside the axes, where no bar and no line can lie under them."""
    beside = axes.get_yaxis_transform()
    figures = _aligned([(row["required_bytes"] or 0) / GIB for row in rows])
    for place, (row, size) in enumerate(zip(rows, figures, strict=True)):
        if row["verdict"] == FAILED:
            text = textwrap.shorten(f"failed: {row['error']}", 90, placeholder=" ...")
            axes.text(0.01, place, text, transform=beside, va="center", fontsize=8)
            continue
        text = f"{size}  {MARKS.get(row['verdict'], '')}{row['verdict']}"
        axes.text(1.01, place, text, transform=beside, va="center", fontsize=9)


def _aligned(sizes_gib: Sequence[float]) -> list[str]:
    texts = [f"{size:.2f}" for size in sizes_gib]
    widest = max(map(len, texts), default=0)
    return [text.rjust(widest, FIGURE_SPACE) for text in texts]


def _draw_limits(axes: Axes, rows: Sequence[Row], *, named: bool = True) -> None:
    """Draw what each row may use: one line where all share it, else a stroke for each."""
    limits = [
        (place, row["budget_bytes"] / GIB)
        for place, row in enumerate(rows)
        if row["budget_bytes"] is not None
    ]
    if not limits:
        return
    from matplotlib.patheffects import withStroke

    values = {f"{limit:.2f}" for _, limit in limits}
    halo = [withStroke(linewidth=3.2, foreground="white")]
    style: dict[str, Any] = {"color": LIMIT, "linewidth": 1.8, "path_effects": halo}
    if len(values) == 1:
        label = f"limit {values.pop()} GiB" if named else None
        axes.axvline(limits[0][1], linestyle="--", label=label, **style)
    else:
        places, xs = zip(*limits, strict=True)
        low, high = [place - 0.45 for place in places], [place + 0.45 for place in places]
        axes.vlines(xs, low, high, label="limit" if named else "", **style)
    axes.set_xlim(left=0, right=1.03 * max(axes.dataLim.x1, *(limit for _, limit in limits)))


_NAMES: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 9, "color": "#444444"}
