"""Which columns a table of plans has: what differs between rows, the verdict, the figures, the choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmsys_exp.report.console import gib
from llmsys_exp.report.plan_rows import Row, axes_of, short_names

NOTHING = "-"
VERDICT = "verdict"
HEADINGS = {"allocated": ("alloc-", "ated"), "checkpointing": ("check-", "pointing")}
OFFLOADS = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer_cpu",
    ("nvme", "none"): "optimizer_nvme",
    ("cpu", "cpu"): "all_cpu",
}


@dataclass(frozen=True)
class Column:
    """One column: its title and its texts, a row each."""

    title: str
    cells: list[str]
    right: bool = False
    may_leave: bool = True

    @property
    def width(self) -> int:
        """Characters the column takes."""
        return max(map(len, [*self.heading, *self.cells]))

    @property
    def heading(self) -> tuple[str, str]:
        """The title in two lines; only one is used where the cells are as wide."""
        if len(self.title) <= max(map(len, self.cells)):
            return "", self.title
        if self.title in HEADINGS:
            return HEADINGS[self.title]
        breaks = [index + 1 for index, letter in enumerate(self.title) if letter in "_ ."]
        if not breaks:
            return "", self.title
        best = min(breaks, key=lambda at: max(at, len(self.title) - at))
        return self.title[:best].rstrip(), self.title[best:]

    @property
    def shared(self) -> str:
        """What every row says that says anything; empty where they differ."""
        said = {cell for cell in self.cells if cell != NOTHING}
        return said.pop() if len(said) == 1 else ""


def table_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns: what differs, the verdict, the figures, and what the planner chose differently."""
    axes = axes_of(rows)
    columns = [
        Column(name, cells, _is_numeric(cells), may_leave=False)
        for name, cells in (
            (name, [row["overrides"].get(key, NOTHING) for row in rows])
            for key, name in short_names(list(axes)).items()
        )
    ]
    columns.append(Column(VERDICT, [row["verdict"] for row in rows], may_leave=False))
    columns += [
        Column("needs", _sizes(rows, "required_bytes"), right=True, may_leave=False),
        Column("allocated", _sizes(rows, "allocated_bytes"), right=True),
        Column("budget", _sizes(rows, "budget_bytes"), right=True),
        Column("left", _sizes(rows, "headroom_bytes"), right=True),
        Column("largest part", [_largest(row) for row in rows]),
    ]
    return [*columns, *_chosen_columns(rows), *_extra_columns(rows)]


def _chosen_columns(rows: Sequence[Row]) -> list[Column]:
    """Settings that were `auto` in some row and came out differently."""
    wanted: list[tuple[str, tuple[str, ...], Callable[[Row], str]]] = [
        ("stage", ("zero.stage",), lambda row: _setting(row, "zero.stage")),
        ("offload", ("offload.optimizer", "offload.param"), _offload),
        ("checkpointing", ("training.gradient_checkpointing",), _checkpointing),
        ("micro_batch", ("training.micro_batch",), lambda row: _setting(row, "training.micro_batch")),
        ("grad_accum", ("training.grad_accum",), lambda row: _setting(row, "training.grad_accum")),
    ]
    columns: list[Column] = []
    for title, keys, text_of in wanted:
        chosen = any(key in row["chosen"] for row in rows for key in keys)
        cells = [text_of(row) for row in rows]
        if chosen and len({cell for cell in cells if cell != NOTHING}) > 1:
            columns.append(Column(title, cells, _is_numeric(cells), may_leave=False))
    return columns


def _extra_columns(rows: Sequence[Row]) -> list[Column]:
    titles = dict.fromkeys(title for row in rows for title in row.get("extra", {}))
    texts = {title: [str(row.get("extra", {}).get(title, NOTHING)) for row in rows] for title in titles}
    return [Column(title, cells, _is_numeric(cells)) for title, cells in texts.items()]


def _setting(row: Row, key: str) -> str:
    value = row["settings"].get(key)
    return NOTHING if value is None else str(value)


def _checkpointing(row: Row) -> str:
    value = row["settings"].get("training.gradient_checkpointing")
    return NOTHING if value is None else "on" if value else "off"


def _offload(row: Row) -> str:
    if not row["settings"]:
        return NOTHING
    pair = _setting(row, "offload.optimizer"), _setting(row, "offload.param")
    return OFFLOADS.get(pair, f"optimizer {pair[0]}, weights {pair[1]}")


def _largest(row: Row) -> str:
    if not row["largest"]:
        return NOTHING
    return f"{row['largest']} {gib(row['largest_bytes'])}"


def _sizes(rows: Sequence[Row], key: str) -> list[str]:
    return [NOTHING if row[key] is None else gib(row[key]) for row in rows]


def _is_numeric(cells: Sequence[str]) -> bool:
    return all(cell in (NOTHING, "auto") or cell.replace(".", "", 1).isdigit() for cell in cells)
