"""Text and pictures of a report: alignment, time left, margins, and what becomes of missing parts."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llmsys_exp.report import plots
from llmsys_exp.report.console import Console, duration, format_table, gib
from llmsys_exp.report.plots import draw_plots, loss_figure, memory_figure, smoothed
from llmsys_exp.report.progress import LineProgress, describe_extras, time_left
from llmsys_exp.runs.measured import MemoryRow, memory_rows
from llmsys_exp.runs.paths import RunPaths


def test_columns_align_and_the_last_one_wraps_below_itself() -> None:
    lines = format_table(
        [["a", "1", "one two three four five six"], ["bbb", "22", "x"]], right=(1,), width=34
    )
    assert lines == ["  a     1  one two three four five", "           six", "  bbb  22  x"]


def test_a_path_is_never_broken() -> None:
    path = "outputs/quickstart/2026-01-02_12-00-00-0123abcd"
    assert path in "\n".join(format_table([["run", path]], width=40))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 01 s"), (3600 * 2 + 60, "2 h 01 min")]
)
def test_durations_read_like_speech(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_memory_is_gib_with_two_decimals() -> None:
    assert gib(3 * 2**29) == "1.50"


def test_no_colour_reaches_a_file() -> None:
    stream = io.StringIO()
    console = Console.on(stream)
    console.title("Title")
    console.line(console.style("red", "red"))
    assert stream.getvalue() == "\nTitle\nred\n"


def test_colours_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Console.on(Terminal()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Console.on(Terminal()).colour


def test_progress_without_a_terminal_is_about_ten_lines() -> None:
    stream = io.StringIO()
    with LineProgress(Console(stream)) as progress:
        progress.handle({"event": "phase", "name": "load model"})
        for done in range(1, 101):
            step = {"event": "progress", "name": "train", "done": done, "total": 100, "unit": "step"}
            progress.handle({**step, "loss": 1 / done})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "  load model ..."
    assert len(lines) == 11
    assert lines[-1].startswith("  train 100/100 step  loss 0.01")
    assert "left" in lines[5]


def test_time_left_needs_something_done_and_something_to_do() -> None:
    assert time_left(2, 6, 10.0) == "30 s left"
    assert time_left(0, 6, 10.0) == ""
    assert time_left(6, 0, 10.0) == ""


def test_extra_figures_are_shown_as_they_are() -> None:
    event = {
        "event": "progress",
        "name": "train",
        "done": 1,
        "total": 2,
        "unit": "step",
        "loss": 1.23456,
        "x": 7,
    }
    assert describe_extras(event) == "loss 1.235  x 7"


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert smoothed([3.0, 3.0, 3.0]) == pytest.approx([3.0, 3.0, 3.0])
    assert smoothed([4.0, 0.0])[0] == pytest.approx(4.0)


@dataclass
class Forecast:
    peak_allocated_bytes: int = 100
    peak_reserved_bytes: int = 120
    components: dict[str, int] = field(
        default_factory=lambda: {
            "weights": 50,
            "fp32 master weights": 5,
            "optimizer states": 5,
            "activations": 40,
        }
    )


def test_on_a_gpu_the_allocator_is_asked_and_evaluation_left_out() -> None:
    phases = [
        {"phase": "evaluate before training", "peak_allocated_bytes": 999, "peak_reserved_bytes": 999},
        {"phase": "after last step", "peak_allocated_bytes": 90, "peak_reserved_bytes": 110},
    ]
    other = [{"phase": "after last step", "peak_allocated_bytes": 95, "peak_reserved_bytes": 100}]
    rows = memory_rows(Forecast(), {"memory_per_rank": [{"phases": phases}, {"phases": other}]})
    assert [(row.name, row.planned_bytes, row.measured_bytes) for row in rows] == [
        ("peak allocated", 100, 95),
        ("peak reserved", 120, 110),
    ]
    assert rows[0].difference == pytest.approx(-0.05)


def test_on_the_cpu_the_process_and_its_tensors_are_asked() -> None:
    phases = [{"phase": "after last step", "live_tensor_bytes": 61, "peak_rss_bytes": 130}]
    rows = memory_rows(Forecast(), {"memory_per_rank": [{"phases": phases}]})
    assert [(row.name, row.planned_bytes, row.measured_bytes) for row in rows] == [
        ("peak", 100, 130),
        ("kept between steps", 60, 61),
    ]
    assert memory_rows(Forecast(), {}) == []


def test_plots_are_drawn_with_labels_on_the_axes(tmp_path: Path) -> None:
    evaluation = {"before": {"loss": 2.0}, "after": {"loss": 0.5}}
    steps = [{"step": step, "train/loss": 2 / step} for step in range(1, 61)]
    figure = loss_figure(steps, {"evaluation": evaluation}, "mine")
    [axes] = figure.axes
    assert axes.get_xlabel() == "optimizer step"
    assert "loss" in axes.get_ylabel()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "training, each step",
        "training, smoothed",
        "held out",
    ]
    memory = memory_figure([MemoryRow("peak", 2**30, 2**29, "allocator")], "mine")
    memory.savefig(tmp_path / "memory.png")
    assert "GiB" in memory.axes[0].get_xlabel()


def test_without_matplotlib_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 1.0}\n', encoding="utf-8")
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    [note] = draw_plots(RunPaths(tmp_path), title="mine", results={}, memory=[])
    assert "pip install matplotlib" in note
    assert not (tmp_path / "loss.png").exists()
