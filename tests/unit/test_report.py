"""Text and pictures of a report: alignment, time left, margins, and what becomes of missing parts."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llmsys_exp.config.compose import compose_config
from llmsys_exp.plan import resolve
from llmsys_exp.report import plots
from llmsys_exp.report.console import Console, duration, format_table, gib
from llmsys_exp.report.plots import draw_plots, loss_figure, memory_figure, smoothed
from llmsys_exp.report.progress import BarProgress, LineProgress
from llmsys_exp.report.progress_line import figures_of, progress_line, time_left_s
from llmsys_exp.report.summary import shorter_than_planned
from llmsys_exp.runs.facts import Asked, Finished
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


def test_time_left_s_needs_something_done_and_something_to_do() -> None:
    assert time_left_s(2, 6, 10.0) == 30
    assert time_left_s(0, 6, 10.0) is None
    assert time_left_s(6, 0, 10.0) is None


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
    assert [piece.text for piece in figures_of(event)] == ["loss 1.235", "x 7"]


STEP = {
    **{"event": "progress", "name": "train", "done": 50, "total": 200, "unit": "step"},
    **{"loss": 1.23456, "lr": 0.00012, "tokens_per_s": 41234.5, "mfu": 0.4123, "grad": 0.5},
    **{"peak_gib": 12.94, "planned_gib": 13.51},
}


def test_a_wide_line_shows_everything_once() -> None:
    assert progress_line(STEP, left_s=181, width=200) == (
        "train 50/200 step  loss 1.235  lr 1.2e-04  41.2k tokens/s  MFU 41.2 %  grad 0.5  "
        "12.9 of 13.5 GiB planned  3 min 01 s left"
    )


@pytest.mark.parametrize("width", range(30, 160, 7))
def test_a_line_never_wraps_and_keeps_what_matters_most(width: int) -> None:
    line = progress_line(STEP, left_s=181, width=width, bar=True)
    assert len(line) <= width
    assert line.startswith("train 50/200")
    for shown, least in (("loss 1.235", 30), ("left", 36), ("41.2k tok", 48), ("GiB", 63), ("MFU", 75)):
        assert shown in line or width < least


def test_what_is_left_of_the_width_is_the_bar() -> None:
    assert progress_line(STEP, left_s=181, width=77, bar=True) == (
        "train 50/200  loss 1.235  41.2k tok/s  MFU 41%  12.9/13.5 GiB  3:01 left"
    )
    assert "━━───" in progress_line(STEP, left_s=181, width=117, bar=True)
    assert "━━───" not in progress_line(STEP, left_s=181, width=117)


def test_evaluations_leave_their_result_and_no_bar() -> None:
    stream = io.StringIO()
    with BarProgress(Console(stream)) as progress:
        progress.handle({**STEP, "done": 10})
        progress.handle({"event": "phase", "name": "evaluate after step 10"})
        bar = {"event": "progress", "name": "evaluate after step 10: loss", "total": 2, "unit": "batch"}
        progress.handle({**bar, "done": 2})
        progress.handle({"event": "result", "name": "evaluate after step 10", "loss": 1.5, "field_f1": 0.25})
        progress.handle({**STEP, "done": 200})
    lines = [line for line in stream.getvalue().splitlines() if line.strip()]
    assert lines[0].startswith("  train 10/200")
    assert lines[1] == "  evaluate after step 10:  loss 1.5  field_f1 0.25"
    assert lines[2].startswith("  train 200/200")
    assert len(lines) == 3


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert smoothed([3.0, 3.0, 3.0]) == pytest.approx([3.0, 3.0, 3.0])
    assert smoothed([4.0, 0.0])[0] == pytest.approx(4.0)


@dataclass
class Forecast:
    peak_allocated_bytes: int = 100
    highest_bytes: int = 100
    peak_reserved_bytes: int = 120
    components: dict[str, int] = field(
        default_factory=lambda: {
            "weights": 50,
            "fp32 master weights": 5,
            "optimizer states": 5,
            "activations": 40,
        }
    )
    device_used_bytes: int = 150
    host_peak_bytes: int = 1000
    phases: dict[str, int] = field(default_factory=lambda: {"load": 50, "forward 1": 70, "backward 1": 90})


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


def test_phases_the_driver_and_main_memory_have_rows_where_they_were_measured() -> None:
    phases = [
        {"phase": "model loaded", "peak_allocated_bytes": 51, "device_used_bytes": 60, "pss_bytes": 300},
        {
            "phase": "after first backward",
            "peak_allocated_bytes": 88,
            "device_used_bytes": 140,
            "pss_bytes": 200,
        },
    ]
    ranks = [
        {"host": "a", "phases": phases},
        {"host": "a", "phases": phases},
        {"host": "b", "phases": phases},
    ]
    rows = memory_rows(Forecast(), {"memory_per_rank": ranks})
    assert [(row.name, row.planned_bytes, row.measured_bytes) for row in rows] == [
        ("peak allocated", 100, 88),
        ("device in use", 150, 140),
        ("  loading", 50, 51),
        ("  first forward and backward", 90, 88),
        ("main memory of a node", 1000, 600),
    ]


def test_on_the_cpu_the_process_and_its_tensors_are_asked() -> None:
    phases = [{"phase": "after last step", "live_tensor_bytes": 61, "peak_rss_bytes": 130}]
    rows = memory_rows(Forecast(), {"memory_per_rank": [{"phases": phases}]})
    assert [(row.name, row.planned_bytes, row.measured_bytes) for row in rows] == [
        ("peak", 100, 130),
        ("kept between steps", 60, 61),
    ]
    assert memory_rows(Forecast(), {}) == []


@pytest.mark.parametrize(("seen", "told"), [(384, 1), (512, 0), (0, 0)])
def test_batches_narrower_than_planned_are_named_with_the_plan_for_them(seen: int, told: int) -> None:
    over = ["model=qwen2_5_0_5b", "hardware=t4", "data=order_book", "data.max_length=512", "method=lora"]
    plan = resolve(compose_config([*over, "model.weights=random", "training.micro_batch=4"]))
    asked = Asked(plan.config, (), (), (), {}, "python", plan=plan)
    train = {"memory_per_rank": [{"widest_tokens": seen}, {"widest_tokens": 0}]}
    lines = shorter_than_planned(Finished(asked, {"train": train}, {}))
    assert len(lines) == told
    for line in lines:
        assert line.startswith("The widest batch had 384 tokens a row, and 512 are planned for; of 384")
        stated = float(line.split("a peak of ")[1].split(" GiB")[0])
        assert 0.5 < stated < plan.forecast.peak_allocated_bytes / 2**30


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


def test_the_summary_tells_what_a_run_went_through() -> None:
    from llmsys_exp.report.summary import life_lines

    train = {
        "best": {"loss": 1.5, "step": 20},
        "resumed_from": [10, 30],
        "bad_steps": 1,
        "stopped_early": True,
    }
    assert life_lines(train) == [
        "lowest held-out loss 1.500 after step 20, and training stopped early",
        "taken up again after step 10, 30",
        "1 steps were left out: their loss or gradient was no number",
    ]
    assert life_lines({}) == []
