"""Tables, files and pictures of many plans, from rows made up here: no planner, no Hydra."""

from __future__ import annotations

import csv
import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.cli.options import TableOptions, split_table_options, take_values
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.report.console import GIB, VERDICT_STYLES, Console
from llmsys_exp.report.plan_columns import table_columns
from llmsys_exp.report.plan_output import check_output, full_axes, write_output
from llmsys_exp.report.plan_rows import axes_of, failed_row, first_line, override_values, short_names
from llmsys_exp.report.plan_table import show_rows, summary_line
from llmsys_exp.report.table_files import check_files, csv_bytes, flat_rows, parquet_bytes, write_whole

LIMIT_GIB = 16.0


def row(point: int, need_gib: float, *, chosen: tuple[str, ...] = (), **overrides: str) -> dict[str, Any]:
    verdict = "does not fit" if need_gib > LIMIT_GIB else "tight" if need_gib > 15.5 else "fits"
    return {
        "point": point,
        "overrides": {key.replace("__", "."): value for key, value in overrides.items()},
        "verdict": verdict,
        "required_bytes": int(need_gib * GIB),
        "allocated_bytes": int((need_gib - 0.5) * GIB),
        "reserved_bytes": int((need_gib + 0.5) * GIB),
        "budget_bytes": int(LIMIT_GIB * GIB),
        "headroom_bytes": int((LIMIT_GIB - need_gib) * GIB),
        "largest": "weights",
        "largest_bytes": int((need_gib - 1) * GIB),
        "components": {"weights": int((need_gib - 1) * GIB), "activations": GIB // 2},
        "phases": {"load": GIB, "forward 1": 2 * GIB, "forward 2": 3 * GIB},
        "settings": {"zero.stage": 2, "training.gradient_checkpointing": need_gib > 10},
        "chosen": list(chosen),
        "fix": "zero.stage=3 offload.optimizer=cpu (about 9.0 GiB)" if verdict == "does not fit" else None,
        "error": None,
    }


def grid() -> list[dict[str, Any]]:
    needs = {("a", "1"): 4, ("a", "8"): 15.8, ("b", "1"): 12, ("b", "8"): 40}
    return [
        row(n, need, model=model, training__micro_batch=batch, zero="stage2")
        for n, ((model, batch), need) in enumerate(needs.items(), 1)
    ]


def failed(point: int, **overrides: str) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return {"point": point, "overrides": named, **failed_row(UserError("bf16 does not run there"))}


def shown(rows: list[dict[str, Any]], width: int = 100) -> list[str]:
    stream = io.StringIO()
    show_rows(Console(stream, width=width), rows, title="Points")
    return stream.getvalue().splitlines()[2:]


def test_the_columns_are_what_differs_and_nothing_that_was_not_left_open() -> None:
    titles = [column.title for column in table_columns(grid())]
    assert titles[:3] == ["model", "micro_batch", "verdict"]
    assert "zero" not in titles
    assert "checkpointing" not in titles
    rows = grid()
    rows[0]["chosen"] = ["training.gradient_checkpointing"]
    assert [c.cells for c in table_columns(rows) if c.title == "checkpointing"] == [["off", "on", "on", "on"]]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_rows_align_and_stay_within_the_width(width: int) -> None:
    lines = shown([*grid(), failed(5, model="c", training__micro_batch="8", zero="stage2")], width)
    assert max(map(len, lines)) <= width
    starts = {
        line.index(word)
        for line in lines
        for word in ("fits  ", "tight", "does not fit", "failed")
        if line.startswith(("  a  ", "  b  ", "  c  ")) and word in line
    }
    assert len(starts) == 1
    assert sum("zero.stage=3 offload.optimizer=cpu" in line for line in lines) == 1
    assert "bf16 does not run there." in lines[-1]


def test_what_all_rows_share_gives_way_to_what_differs() -> None:
    narrow = "\n".join(shown(grid(), 60))
    assert "Every row: budget 16.00." in narrow
    assert "40.00" in narrow


def test_verdicts_are_coloured_where_colours_show() -> None:
    stream = io.StringIO()
    show_rows(Console(stream, colour=True, width=100), grid(), title="Points")
    assert VERDICT_STYLES["tight"] == "yellow"
    assert "\x1b[33mtight\x1b[0m" in stream.getvalue()


def test_further_columns_of_other_verbs_are_shown_and_written() -> None:
    rows = grid()
    for number, one in enumerate(rows):
        one["extra"] = {"tokens/s": 1000 * (number + 1)}
    assert [c.cells for c in table_columns(rows) if c.title == "tokens/s"] == [
        ["1000", "2000", "3000", "4000"]
    ]
    assert [one["tokens/s"] for one in flat_rows(rows)] == [1000, 2000, 3000, 4000]


def test_the_summary_counts_verdicts() -> None:
    rows = [*grid(), failed(5, model="c")]
    assert summary_line(rows, seconds=2.04) == "5 points in 2.0 s: 2 fit, 1 tight, 1 does not fit, 1 failed."
    cut = summary_line(rows[:1], seconds=12.3, repeated=1, total=9)
    assert cut.startswith("1 of 9 points in 12 s: 1 fits.  1 has the settings of another")


def test_short_names_stay_unique() -> None:
    assert short_names(["training.micro_batch", "model"]) == {
        "training.micro_batch": "micro_batch",
        "model": "model",
    }
    assert list(short_names(["offload.param.x", "zero.param.x", "x"]).values()) == [
        "offload.param.x",
        "zero.param.x",
        "x",
    ]


def test_overrides_split_at_the_first_equals_sign() -> None:
    assert override_values(["+a.b=c=d", "a.b=2", "model=x"]) == {"a.b": "2", "model": "x"}
    assert axes_of(grid()) == {"model": ["a", "b"], "training.micro_batch": ["1", "8"]}


def test_several_problems_become_one_line() -> None:
    assert first_line(ConfigError(["one is wrong.", "two is wrong."])) == "one is wrong. (and 1 more)"


def test_csv_has_every_row_with_the_same_columns() -> None:
    rows = [*grid(), failed(5, model="c, d")]
    read = list(csv.DictReader(io.StringIO(csv_bytes(rows).decode())))
    assert [one["verdict"] for one in read] == ["fits", "tight", "fits", "does not fit", "failed"]
    assert read[0]["required_gib"] == "4.0"
    assert read[0]["part.weights_gib"] == "3.0"
    assert read[0]["resolved.zero.stage"] == "2"
    assert (read[4]["model"], read[4]["required_gib"]) == ("c, d", "")
    assert read[4]["error"] == "bf16 does not run there."


def test_parquet_keeps_numbers_and_gaps() -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    rows = [*grid(), failed(5, model="c")]
    rows[0]["settings"]["zero.stage"] = "mixed"
    frame = pd.read_parquet(io.BytesIO(parquet_bytes(rows)))
    assert frame["required_gib"].tolist()[:4] == [4.0, 15.8, 12.0, 40.0]
    assert pd.isna(frame["required_gib"][4])
    assert frame["resolved.zero.stage"].tolist()[:2] == ["mixed", "2"]


REFUSED = {
    "suffix": ("--csv", "rows.txt", "does not write .txt"),
    "no suffix": ("--plot", "rows", "does not write a file without suffix"),
    "folder": ("--csv", "nowhere/rows.csv", "There is no such folder"),
    "existing": ("--csv", "old.csv", "This file exists"),
    "is a folder": ("--csv", "folder.csv", "This is a folder"),
    "long name": ("--csv", f"{'x' * 251}.csv", "Cannot write here"),
}


@pytest.mark.parametrize(("flag", "name", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_files_that_cannot_be_written_are_refused_beforehand(
    flag: str, name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "old.csv").write_text("old", encoding="utf-8")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=text):
        check_files({flag: tmp_path / name}, force=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.csv", "old.csv"]


def test_force_allows_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("old", encoding="utf-8")
    check_files({"--csv": tmp_path / "old.csv"}, force=True)


@pytest.mark.parametrize(("flag", "package"), [("--plot", "matplotlib"), ("--parquet", "pyarrow")])
def test_a_missing_package_is_told_beforehand(
    flag: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    suffix = {"--plot": ".png", "--parquet": ".parquet"}[flag]
    with pytest.raises(UserError, match=f"{flag} needs {package}.*pip install {package}"):
        check_files({flag: tmp_path / f"x{suffix}"}, force=False)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "rows.csv"
    file.write_text("old", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="Cannot write: No space left on device"):
        write_whole(file, b"new")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_one_file_that_fails_does_not_cost_the_others(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "rows.csv").mkdir()
    stream = io.StringIO()
    tables = TableOptions(csv=tmp_path / "rows.csv", plot=tmp_path / "rows.svg")
    with pytest.raises(UserError, match=r"rows\.csv"):
        write_output(Console(stream), tables, grid())
    assert "Wrote" in stream.getvalue()
    assert (tmp_path / "rows.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_flags_take_their_value_either_way() -> None:
    tables, rest = split_table_options(
        ["--csv", "a.csv", "-m", "--plot=b.png", "x=1", "--axes", "a,b", "--force"]
    )
    assert (tables.csv, tables.plot, tables.axes, tables.force) == (
        Path("a.csv"),
        Path("b.png"),
        ("a", "b"),
        True,
    )
    assert rest == ["-m", "x=1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--csv"], "--csv needs a value"),
        (["--csv", "--json"], "--csv needs a value"),
        (["--csv="], "--csv needs a value"),
        (["--csv", "a", "--csv", "b"], "--csv is given twice"),
    ],
)
def test_flags_without_a_value_or_with_two_are_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(UserError, match=text):
        take_values(arguments, {"--csv": "FILE"})


@pytest.mark.parametrize("text", ["a", "a,a", "a,", "a,b,c"])
def test_axes_are_two(text: str) -> None:
    with pytest.raises(UserError, match="does not name two overrides"):
        split_table_options(["--axes", text])


def test_axes_may_be_named_shortly_and_slips_get_the_closest() -> None:
    keys = ["training.micro_batch", "model", "zero"]
    assert full_axes(("micro_batch", "zero"), keys) == ("training.micro_batch", "zero")
    with pytest.raises(UserError, match=r"Did you mean model\?"):
        full_axes(("modle", "zero"), keys)


def test_pictures_nobody_could_read_are_refused_beforehand(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "x.png"
    with pytest.raises(UserError, match=r"100 bars.*--axes"):
        check_output(TableOptions(plot=plot), swept={"a": 10, "b": 5, "c": 2, "d": 1})
    with pytest.raises(UserError, match="200 steps along a"):
        check_output(TableOptions(plot=plot), swept={"a": 200, "b": 5})
    check_output(TableOptions(plot=plot, axes=("b", "c")), swept={"a": 10, "b": 5, "c": 2})
    with pytest.raises(UserError, match="--axes names what --plot draws"):
        check_output(TableOptions(axes=("b", "c")), swept={"b": 5, "c": 2})


def many() -> list[dict[str, Any]]:
    return [
        row(n, 3 + 5 * n, model=f"a_rather_long_name_{n % 6}", hardware=f"gpu_{n // 6}", zero=f"stage{n % 2}")
        for n in range(24)
    ]


PICTURES = {
    "one": (lambda: grid()[:1], None, "parts at the peak"),
    "bars": (
        lambda: [one for one in grid() if one["overrides"]["model"] == "b"],
        None,
        "a bar for each point",
    ),
    "bars of three": (many, None, "a bar for each point; --axes"),
    "map": (grid, None, "map of model and training.micro_batch"),
    "map of two of three": (
        many,
        ("model", "hardware"),
        "map of hardware and model; each cell shows the best over zero",
    ),
    "failures": (
        lambda: [*grid(), failed(5, model="c", training__micro_batch="1", zero="stage2")],
        None,
        "map of model and training.micro_batch",
    ),
    "all failed": (lambda: [failed(1, model="a"), failed(2, model="b")], None, "a bar for each point"),
}


@pytest.mark.parametrize(("make", "axes", "note"), PICTURES.values(), ids=PICTURES.keys())
def test_pictures_say_what_they_show_and_no_text_lies_on_another(make: Any, axes: Any, note: str) -> None:
    pytest.importorskip("matplotlib")
    from llmsys_exp.report.plan_plots import draw, picture_bytes

    figure, said = draw(make(), axes=axes)
    assert said.startswith(note)
    assert picture_bytes(figure, ".png").startswith(b"\x89PNG")
    figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in upright_texts(figure)]
    assert len(boxes) > 3
    for index, (text, box) in enumerate(boxes):
        assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1, text
        assert not [other for other, other_box in boxes[index + 1 :] if box.overlaps(other_box)], text


def upright_texts(figure: Any) -> list[Any]:
    """What is drawn: matplotlib keeps ticks outside the view, too."""
    texts = [figure._suptitle, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        texts += [*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [
        text for text in texts if text.get_text().strip() and text.get_visible() and not text.get_rotation()
    ]


def test_a_cell_shows_the_best_of_the_others() -> None:
    pytest.importorskip("matplotlib")
    from llmsys_exp.report.plan_map import best_cells

    rows = [
        row(1, 40, a="x", b="y", c="1"),
        row(2, 9, a="x", b="y", c="2"),
        row(3, 5, a="x", b="y", c="3"),
        failed(4, a="x", b="y", c="4"),
    ]
    assert best_cells(rows, "a", "b")["x", "y"]["overrides"]["c"] == "3"


def test_the_same_rows_give_the_same_file() -> None:
    pytest.importorskip("matplotlib")
    from llmsys_exp.report.plan_plots import draw, picture_bytes

    for suffix in (".svg", ".pdf", ".png"):
        first, second = (picture_bytes(draw(grid(), axes=None)[0], suffix) for _ in range(2))
        assert first == second


def test_a_file_that_came_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "held.pickle"
    file.write_bytes(b"of another process")
    with pytest.raises(UserError, match="has come meanwhile"):
        write_whole(file, b"ours", force=False)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"of another process"]
    write_whole(file, b"ours", force=True)
    assert file.read_bytes() == b"ours"
