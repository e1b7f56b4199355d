"""Loss curves of runs beside each other: as a line of signs each, and as a picture."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.compare.subjects import Subject
from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.series import lines_of, read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIGNS = "▁▂▃▄▅▆▇█"
WIDTH = 48
_SMOOTH_FROM = 40
_LONG = 4
"""Entries of a legend that stand in one column."""


@dataclass(frozen=True)
class Curve:
    """The losses of one run by optimizer step."""

    letter: str
    losses: tuple[tuple[int, float], ...]
    heldout: tuple[tuple[int, float], ...]
    speeds: tuple[tuple[int, float], ...]
    """Tokens a second."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; what is no finite number is null."""
        return {
            "letter": self.letter,
            "losses": [(step, value if math.isfinite(value) else None) for step, value in self.losses],
            "heldout": [(step, value if math.isfinite(value) else None) for step, value in self.heldout],
        }


def read_curves(subjects: Sequence[Subject]) -> tuple[list[Curve], list[str]]:
    """Return the curves of the runs that logged any, and what is wrong with logs."""
    curves: list[Curve] = []
    notes: list[str] = []
    for one in subjects:
        if not one.has_folder:
            continue
        try:
            log = read_log(one.told.paths.metrics)
        except UserError as error:
            notes.append(f"{one.letter}: {error}")
            continue
        if log.broken_lines:
            notes.append(f"{one.letter}: {log.broken_lines} lines of metrics.jsonl are broken and left out")
        losses, heldout = (sorted(each.by_step().items()) for each in (log.losses, log.evaluations))
        if losses:
            speeds = tuple(_speeds(one.told.paths.metrics))
            curves.append(Curve(one.letter, tuple(losses), tuple(heldout), speeds))
    return curves, notes


def sparkline(points: Sequence[tuple[int, float]], steps: Sequence[int], values: tuple[float, float]) -> str:
    """Draw a curve as one line of signs, on axes that several curves share.

    Args:
        points: step and value.
        steps: every step that one of the curves has, in order.
        values: lowest and highest value of the axis.

    >>> sparkline([(1, 3.0), (2, 2.0), (3, 1.0)], [1, 2, 3, 4], (1.0, 3.0))
    '█▅▁'
    """
    low, high = values
    width = min(WIDTH, len(steps))
    place_of = {step: place * width // len(steps) for place, step in enumerate(steps)}
    columns: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        if math.isfinite(value):
            columns[place_of[step]].append(value)
    signs, last = "", " "
    for column in columns[: 1 + max((place for place, one in enumerate(columns) if one), default=-1)]:
        if column:
            share = (sum(column) / len(column) - low) / ((high - low) or 1)
            last = _SIGNS[math.floor((len(_SIGNS) - 1) * share + 0.5)]
        signs += last  # a run that logs less often than another holds its value until the next
    return signs


def curve_rows(curves: Sequence[Curve]) -> list[tuple[str, str, str]]:
    """Return a row of each curve: its letter, its line on common axes, and its ends."""
    finite = [value for one in curves for _, value in one.losses if math.isfinite(value)]
    if not finite:
        return []
    steps = sorted({step for one in curves for step, _ in one.losses})
    rows: list[tuple[str, str, str]] = []
    for one in curves:
        (start, first), (end, last) = one.losses[0], one.losses[-1]
        ends = f"{first:.4g} at step {start}, {last:.4g} at step {end}"
        rows.append((one.letter, sparkline(one.losses, steps, (min(finite), max(finite))), ends))
    return rows


def curve_picture(curves: Sequence[Curve], labels: Mapping[str, str], suffix: str) -> bytes:
    """Return a picture of the curves: loss over steps, and below it speed where any run logged some.

    Args:
        curves: at least one.
        labels: letter of a run -> what its curve is called.
        suffix: `.png`, `.svg` or `.pdf`.
    """
    data = io.BytesIO()
    _figure(curves, labels).savefig(data, format=suffix.removeprefix("."), dpi=150)
    return data.getvalue()


def _figure(curves: Sequence[Curve], labels: Mapping[str, str]) -> Figure:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from llmsys_exp.report.plots import smoothed

    has_speed = any(one.speeds for one in curves)
    figure = Figure(figsize=(9, 6.6 if has_speed else 4.6), layout="constrained")
    every = figure.subplots(2 if has_speed else 1, 1, squeeze=False, height_ratios=[2, 1][: 1 + has_speed])
    axes = every[0][0]
    colours = mpl.colormaps["tab10" if len(curves) <= 10 else "tab20"]
    for place, one in enumerate(curves):
        colour, (steps, losses) = colours(place), zip(*one.losses, strict=True)
        label = labels[one.letter]
        if len(losses) >= _SMOOTH_FROM:
            axes.plot(steps, losses, color=colour, alpha=0.25, linewidth=1)
            losses = smoothed(losses)
        axes.plot(
            steps, losses, color=colour, linewidth=1.8, label=label, marker="." if len(losses) == 1 else None
        )
        if one.heldout:
            axes.plot(
                *zip(*one.heldout, strict=True), color=colour, linestyle="none", marker="o", markersize=5
            )
        if one.speeds:
            every[1][0].plot(*zip(*one.speeds, strict=True), color=colour, linewidth=1.3)
    held = "; dots: held out" if any(one.heldout for one in curves) else ""
    axes.set_title(f"Loss{held}", loc="left")
    axes.set_ylabel("loss")
    if has_speed:
        every[1][0].set_ylabel("tokens/s")
        every[1][0].set_ylim(bottom=0)
    every[-1][0].set_xlabel("optimizer step")
    for (each,) in every:
        each.grid(color="#dddddd", linewidth=0.6)
        each.spines[["top", "right"]].set_visible(False)
        each.xaxis.get_major_locator().set_params(integer=True)
    handles, columns = axes.get_legend_handles_labels(), 1 if len(curves) <= _LONG else 2
    figure.legend(*handles, loc="outside lower left", frameon=False, fontsize=8, ncols=columns)
    return figure


def _speeds(path: Path) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for line in lines_of(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # counted when the losses were read
        step, rate = (row.get(key) if isinstance(row, dict) else None for key in ("step", "tokens_per_s"))
        if isinstance(step, int) and isinstance(rate, (int, float)):
            found.append((step, rate))
    return found
