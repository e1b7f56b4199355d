"""The feasibility map: what fits, over two overrides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmsys_exp.report.console import gib
from llmsys_exp.report.plan_plots import LETTER_IN, MARKS, canvas, set_title
from llmsys_exp.report.plan_rows import (
    DOES_NOT_FIT,
    FAILED,
    FITS,
    NO_LIMIT,
    TIGHT,
    VERDICTS,
    Row,
    axes_of,
    short_names,
)
from planner.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL_COLOURS = {
    FITS: "#9BD3F0",
    TIGHT: "#F5E663",
    DOES_NOT_FIT: "#E8935B",
    NO_LIMIT: "#DDDDDD",
    FAILED: "#BBBBBB",
}
"""Light tints of colours that any colour vision tells apart; black text reads on all of them."""

Cells = dict[tuple[str, str], Row]


def map_figure(rows: Sequence[Row], *, across: str, down: str) -> Figure:
    """Draw a cell for each pair of values, coloured by verdict, with the GiB it needs."""
    cells = best_cells(rows, across, down)
    varied = axes_of(rows)
    others = [key for key in varied if key not in (across, down)]
    columns, lines = varied[across], varied[down]
    texts = {place: _cell_text(row, others) for place, row in cells.items()}
    x_labels, y_labels = _labels(rows, across, columns), _labels(rows, down, lines)
    widest = max(len(line) for text in texts.values() for line in text.splitlines())
    cell_in = max(0.8, LETTER_IN * (widest + 2))
    tall_in = 0.32 + 0.17 * max(text.count("\n") + 1 for text in texts.values())
    left_in = 0.9 + LETTER_IN * max(map(_width, y_labels))
    width_in = max(6.5, left_in + cell_in * len(columns))
    tilted = LETTER_IN * max(map(_width, x_labels)) > 0.95 * (width_in - left_in) / len(columns)
    if tilted:
        x_labels = [label.replace("\n", " ") for label in x_labels]
    below_in = 0.5 * LETTER_IN * max(map(len, x_labels)) if tilted else 0.3
    figure = canvas(width_in, 1.9 + below_in + tall_in * len(lines) + (0.3 if others else 0))
    axes = figure.add_subplot()
    _paint(axes, cells, texts, columns, lines)
    slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if tilted else {}
    axes.set_xticks(range(len(columns)), x_labels, **slant)
    axes.set_yticks(range(len(lines)), y_labels)
    names = short_names(list(varied))
    axes.set_xlabel(names[across])
    axes.set_ylabel(names[down])
    _explain(figure, axes, rows, cells, others, width_in - left_in)
    return figure


def best_cells(rows: Sequence[Row], across: str, down: str) -> Cells:
    """Return for each pair of values the best row: by verdict, then the one that needs least."""
    cells: Cells = {}
    for row in sorted(rows, key=_rank):
        cells.setdefault((row["overrides"].get(across, ""), row["overrides"].get(down, "")), row)
    return cells


def _rank(row: Row) -> tuple[int, int]:
    order = (FITS, NO_LIMIT, TIGHT, DOES_NOT_FIT, FAILED)
    return order.index(row["verdict"]), row["required_bytes"] or 0


def _cell_text(row: Row, others: Sequence[str]) -> str:
    if row["verdict"] == FAILED:
        return "failed"
    text = f"{MARKS.get(row['verdict'], '')}{row['required_bytes'] / GIB:.1f}"
    return "\n".join([text, *(row["overrides"].get(key, "-") for key in others)])


def _labels(rows: Sequence[Row], key: str, values: Sequence[str]) -> list[str]:
    """Return the values of an axis, with the limit where this axis decides it."""
    limits = {
        value: {row["budget_bytes"] for row in rows if row["overrides"].get(key, "") == value} - {None}
        for value in values
    }
    decides = all(len(found) <= 1 for found in limits.values())
    if not decides or len(set().union(*limits.values())) < 2:
        return [value or "-" for value in values]
    shown = {value: f"\n({gib(next(iter(found)))} GiB)" if found else "" for value, found in limits.items()}
    return [f"{value or '-'}{shown[value]}" for value in values]


def _width(label: str) -> int:
    return max(map(len, label.splitlines()))


def _paint(
    axes: Axes, cells: Cells, texts: dict[tuple[str, str], str], columns: list[str], lines: list[str]
) -> None:
    from matplotlib.patches import Rectangle

    for (x_value, y_value), row in cells.items():
        x, y = columns.index(x_value), lines.index(y_value)
        colour = CELL_COLOURS[row["verdict"]]
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
        axes.text(x, y, texts[x_value, y_value], ha="center", va="center", fontsize=9.5)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _explain(
    figure: Figure, axes: Axes, rows: Sequence[Row], cells: Cells, others: Sequence[str], room_in: float
) -> None:
    from matplotlib.patches import Patch

    limits = {gib(row["budget_bytes"]) for row in rows if row["budget_bytes"] is not None}
    title = "Memory that one rank needs, GiB"
    title += f" (limit {limits.pop()})" if len(limits) == 1 else ""
    more = f"Each cell: the best {', '.join(others)} (fits first, then needs least)" if others else ""
    set_title(axes, title, rows, room_in, more=more)
    used = {row["verdict"] for row in cells.values()}
    handles = [
        Patch(facecolor=CELL_COLOURS[name], label=f"{MARKS.get(name, '')}{name}")
        for name in VERDICTS
        if name in used
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
