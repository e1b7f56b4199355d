"""Result of the step `parallelism` as tables and as a picture: formula and measurement side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmsys_exp.report.console import Console, mib
from planner.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMULA, MEASURED = "#9ecae9", "#4c78a8"
PARTS = {"weights": "#4c78a8", "gradients": "#72b7b2", "optimizer": "#eeca3b", "activations": "#e45756"}
WHAT_MOVES = {
    "data": "every gradient, all-reduced: 2 (n-1)/n of it a rank, whatever the batch",
    "pipeline": "activations across each boundary, and their gradients back",
    "tensor": "activations, all-reduced four times a layer, whatever the weights",
}


def show_parallelism(console: Console, result: Mapping[str, Any]) -> None:
    """Write the tables."""
    _show_proof(console, result)
    _show_bytes(console, result)
    _show_memory(console, result)
    _show_bubble(console, result)


def parallelism_figure(result: Mapping[str, Any], title: str) -> Figure:
    """Draw bytes, memory and the bubble."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    sent, held, bubble = figure.subplots(1, 3)
    _draw_bytes(sent, result)
    _draw_memory(held, result)
    _draw_bubble(bubble, result)
    for axes in (sent, held, bubble):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Parallelism: {title}", x=0.01, ha="left")
    return figure


def most_sent(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return for each scheme the row of the rank that sends most."""
    return _most(result["bytes"], lambda row: row["payload"]["measured"])


def most_held(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return for each scheme the row of the rank that holds most."""
    return _most(result["memory"], lambda row: sum(row["measured"].values()))


def _most(rows: Sequence[Mapping[str, Any]], size: Any) -> list[Mapping[str, Any]]:
    names = dict.fromkeys(row["scheme"] for row in rows)
    return [max((row for row in rows if row["scheme"] == name), key=size) for name in names]


def _show_proof(console: Console, result: Mapping[str, Any]) -> None:
    shape = result["shape"]
    model = f"{shape['parameters'] / 1e6:.1f} million weights in {shape['layers']} layers"
    console.line(
        f"  {model} on {result['ranks']} ranks; "
        f"{result['sequences']} sequences of {result['length']} tokens a step"
    )
    off = max(value for name, value in result["loss_differences"].items() if name != "one rank")
    steps = len(result["losses"]["one rank"])
    console.line(f"  All train as one rank does: over {steps} steps no loss differs by more than {off:.0e}.")


def _show_bytes(console: Console, result: Mapping[str, Any]) -> None:
    console.title("Sent by a rank in a step, MiB")
    rows = []
    for row in most_sent(result):
        payload, wire = row["payload"], row["wire"]
        on_wire = "-" if wire["measured"] is None else mib(wire["measured"])
        handed = [mib(payload["formula"]), mib(payload["measured"]), str(row["calls"])]
        rows.append([row["scheme"], *handed, mib(wire["formula"]), on_wire, WHAT_MOVES[row["scheme"]]])
    header = ("", "formula", "handed over", "calls", "formula", "on the wire", "what moves")
    console.table(rows, header=header, right=(1, 2, 3, 4, 5))


def _show_memory(console: Console, result: Mapping[str, Any]) -> None:
    console.title("Held by the rank that holds most, MiB")
    rows = []
    for row in most_held(result):
        measured = row["measured"]
        whole, wanted = sum(measured.values()), sum(row["formula"].values())
        parts = [mib(measured[part]) for part in PARTS]
        rows.append([row["scheme"], *parts, mib(whole), mib(wanted), f"{100 * (whole / wanted - 1):+.1f} %"])
    console.table(rows, header=("", *PARTS, "all", "formula", "off by"), right=range(1, 8))


def _show_bubble(console: Console, result: Mapping[str, Any]) -> None:
    console.title(f"The pipeline's bubble: share of a step in which its {result['ranks']} ranks wait")
    rows = [
        [str(row["micro_batches"]), f"{row['formula']:.3f}", f"{row['measured']:.3f}", f"{row['step_s']:.2f}"]
        for row in result["bubble"]
    ]
    console.table(rows, header=("micro-batches", "(p-1)/(m+p-1)", "measured", "step s"), right=range(4))


def _draw_bytes(axes: Axes, result: Mapping[str, Any]) -> None:
    rows = most_sent(result)
    for shift, label, colour, key in ((-0.2, "formula", FORMULA, "formula"), (0.2, "measured", MEASURED, "")):
        sizes = [
            (row["wire"][key] if key else row["wire"]["measured"] or row["payload"]["measured"]) / MIB
            for row in rows
        ]
        bars = axes.bar([at + shift for at in range(len(rows))], sizes, 0.36, label=label, color=colour)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    axes.set_xticks(range(len(rows)), [row["scheme"] for row in rows])
    axes.set_ylabel("MiB sent by a rank in a step")
    axes.legend(frameon=False)


def _draw_memory(axes: Axes, result: Mapping[str, Any]) -> None:
    rows = most_held(result)
    for shift, key in ((-0.2, "formula"), (0.2, "measured")):
        bottom = [0.0] * len(rows)
        for part, colour in PARTS.items():
            sizes = [row[key][part] / MIB for row in rows]
            axes.bar(
                [at + shift for at in range(len(rows))],
                *(sizes, 0.36),
                bottom=bottom,
                color=colour,
                alpha=0.55 if key == "formula" else 1.0,
                label=part if key == "measured" else None,
            )
            bottom = [one + size for one, size in zip(bottom, sizes, strict=True)]
    axes.set_xticks(range(len(rows)), [row["scheme"] for row in rows])
    axes.set_ylabel("MiB held by a rank (pale: formula)")
    axes.legend(frameon=False, fontsize=8)


def _draw_bubble(axes: Axes, result: Mapping[str, Any]) -> None:
    counts = [row["micro_batches"] for row in result["bubble"]]
    axes.plot(counts, [row["formula"] for row in result["bubble"]], color=FORMULA, label="(p-1)/(m+p-1)")
    axes.plot(counts, [row["measured"] for row in result["bubble"]], "o", color=MEASURED, label="measured")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(0, None)
    axes.set_xlabel("micro-batches in a step")
    axes.set_ylabel("share of time in which ranks wait")
    axes.legend(frameon=False)
