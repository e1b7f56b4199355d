"""Picture of a simulation: what the GPU held, by part, from request to request of its allocator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmsys_exp.report.plan_plots import (
    COLOURS,
    LIMIT,
    REST,
    SPARE_COLOURS,
    bare_axes,
    canvas,
)
from llmsys_exp.report.plan_text import SMALL_BYTES, place, show_value
from planner.simulate.peak import phases_at, timeline
from planner.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from llmsys_exp.plan import Plan
    from planner.memory.arena import Arena

WIDTH_IN, HEIGHT_IN = 11.0, 5.2
POINTS = 12_000
MOST_NAMED = 8
START_SHARE = 0.2
"""Width of load and engine start beside the steps, which many small weights would squeeze otherwise."""
STEPS_SHOWN = 2
"""The first makes the optimizer's state, and the second goes as all others go."""
LEAST_NAMED = 0.045
"""A phase narrower than this share of its part of the picture is not named."""
Point = Mapping[str, Any]
Phase = tuple[str, int, int]


def timeline_figure(arena: Arena, plan: Plan) -> Figure:
    """Draw memory by part over the requests of load and engine start, and of the first two steps."""
    start, steps = _split(phases_at(arena))
    first, last = steps[0][1], steps[-1][2]
    points = [point for point in timeline(arena, POINTS) if point["request"] <= last]
    names = _named([point["bytes"] for point in points])
    unit = MIB if arena.peak_bytes < SMALL_BYTES else GIB
    figure = canvas(WIDTH_IN, HEIGHT_IN)
    left, right = figure.subplots(
        1, 2, sharey=True, gridspec_kw={"width_ratios": [START_SHARE, 1 - START_SHARE], "wspace": 0.02}
    )
    _draw(left, [point for point in points if point["request"] <= first], names, start, unit)
    _draw(right, [point for point in points if point["request"] >= first], names, steps, unit)
    _lines(left, right, arena, plan, unit)
    left.set_ylabel("MiB" if unit == MIB else "GiB")
    left.set_ylim(bottom=0)
    right.tick_params(labelleft=False, left=False)
    figure.suptitle(_title(plan), x=0.01, ha="left", fontsize=10)
    handles = right.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _title(plan: Plan) -> str:
    shown = {choice.key: choice.value for choice in plan.choices}
    keys = (
        "zero.stage",
        "offload.optimizer",
        "offload.param",
        "training.gradient_checkpointing",
        "training.micro_batch",
    )
    said = " ".join(f"{key.removeprefix('training.')}={show_value(shown[key])}" for key in keys)
    return f"{place(plan.config)}, simulated: {said}"


def _draw(
    axes: Axes, points: Sequence[Point], names: Mapping[str, str], phases: Sequence[Phase], unit: int
) -> None:
    bare_axes(axes)
    _stack(axes, points, names, unit)
    _mark(axes, phases)
    axes.set_xlabel("requests to the allocator")


def _split(phases: Sequence[Phase]) -> tuple[list[Phase], list[Phase]]:
    """Load and engine start, and the phases of the steps that are drawn."""
    ends = [number for number, (name, _, _) in enumerate(phases) if name.startswith("step ")]
    begin = next(number for number, (name, _, _) in enumerate(phases) if name.startswith("forward"))
    return list(phases[:begin]), list(phases[begin : ends[min(STEPS_SHOWN, len(ends)) - 1] + 1])


def _named(held: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """The parts that are largest anywhere, those that stay first, each with its colour."""
    most: dict[str, int] = {}
    for parts in held:
        for name, size in parts.items():
            most[name] = max(size, most.get(name, 0))
    kept = sorted(most, key=lambda name: -most[name])[:MOST_NAMED]
    order = list(COLOURS)
    kept.sort(key=lambda name: order.index(name) if name in order else len(order))
    spare = iter([colour for colour in SPARE_COLOURS if colour not in {COLOURS.get(name) for name in kept}])
    return {name: COLOURS.get(name) or next(spare) for name in kept}


def _stack(axes: Axes, points: Sequence[Point], names: Mapping[str, str], unit: int) -> None:
    across = [point["request"] for point in points]
    layers = [[point["bytes"].get(name, 0) / unit for point in points] for name in names]
    rest = [_beside(point["bytes"], names) / unit for point in points]
    axes.stackplot(
        across,
        *layers,
        rest,
        colors=[*names.values(), REST],
        labels=[*names, "smaller parts"],
        linewidth=0,
    )
    axes.set_xlim(across[0], across[-1])


def _mark(axes: Axes, phases: Sequence[Phase]) -> None:
    """Draw a line where a phase ends, and write its name above it."""
    span = max(1, phases[-1][2] - phases[0][1])
    for _, _, end in phases[:-1]:
        axes.axvline(end, color="#555555", linewidth=0.6)
    for name, middle in _labels(phases, span):
        axes.text(
            middle,
            1.01,
            name,
            transform=axes.get_xaxis_transform(),
            ha="left",
            va="bottom",
            rotation=30,
            rotation_mode="anchor",
            fontsize=8,
        )


def _labels(phases: Sequence[Phase], span: int) -> Iterator[tuple[str, float]]:
    for name, begin, end in phases:
        if end - begin >= LEAST_NAMED * span:
            yield name, (begin + end) / 2


def _beside(held: Mapping[str, int], names: Mapping[str, str]) -> int:
    return sum(size for name, size in held.items() if name not in names)


def _lines(left: Axes, right: Axes, arena: Arena, plan: Plan, unit: int) -> None:
    """Draw the peak, which may be too short to see, and the limit where it is in sight of it."""
    _, verdict = plan.known
    name = "MiB" if unit == MIB else "GiB"
    lines = [("peak", arena.peak_bytes, ":")]
    if verdict.budget_bytes < 2 * arena.peak_bytes:
        lines.append(("limit", verdict.budget_bytes, "--"))
    for what, size, style in lines:
        for axes in (left, right):
            said = f"{what} {size / unit:.2f} {name}"
            axes.axhline(size / unit, color=LIMIT, linestyle=style, linewidth=1.2, label=said)
