"""The points of a sweep worth a look: lowest loss, highest score, fastest, smallest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.sweeps.ledger.ledger import DONE
from llmsys_exp.sweeps.results.rows import Row


@dataclass(frozen=True)
class Measure:
    """A figure that points are compared by.

    Attributes:
        column: its column in the table.
        name: what it is called, with its unit.
        more: whether more is better.
        best: what the best point in it is called.
    """

    column: str
    name: str
    more: bool
    best: str


MEASURES = (
    Measure("heldout_loss", "held-out loss", False, "Lowest held-out loss"),
    Measure("score", "score", True, "Highest score"),
    Measure("loss_last", "training loss", False, "Lowest training loss"),
    Measure("tokens_per_s", "training tokens/s", True, "Fastest training"),
    Measure("out_tokens_per_s", "new tokens/s", True, "Fastest answers"),
    Measure("latency_p99_s", "p99 latency, s", False, "Shortest wait"),
    Measure("peak_measured_gib", "measured peak, GiB", False, "Smallest"),
)
"""What a sweep is judged by comes first."""
_SEARCHED = {
    "evaluation.loss": "heldout_loss",
    "best.loss": "heldout_loss_best",
    "loss": "loss_last",
    "score": "score",
    "tokens_per_s": "tokens_per_s",
    "peak_gib": "peak_measured_gib",
    "seconds": "seconds",
}
"""Metric of a search -> column."""


@dataclass(frozen=True)
class Pick:
    """A point that is best in something."""

    row: Row
    measures: list[Measure]


def measures_of(rows: Sequence[Row], search: Mapping[str, Any] | None = None) -> list[Measure]:
    """Return the measures that rows have figures of: first those that a search goes by, then in our order.

    The training loss is left out where a held-out loss is known: it says less.
    """
    wanted = [*_searched(search), *MEASURES]
    known = {
        one.column: one for one in reversed(wanted) if any(is_number(row.get(one.column)) for row in rows)
    }
    found = [one for one in dict.fromkeys(wanted) if known.get(one.column) is one]
    columns = [one.column for one in found]
    if "heldout_loss" in columns and columns[0] != "loss_last":
        return [one for one in found if one.column != "loss_last"]
    return found


def best_points(rows: Sequence[Row], measures: Sequence[Measure]) -> list[Pick]:
    """Return the points that are best in something, each once; a search's objectives come first."""
    done = [row for row in rows if row["state"] == DONE]
    found: dict[int, Pick] = {}
    for one in measures:
        known = [row for row in done if is_number(row.get(one.column))]
        if not known or (len(done) > 1 and not tells_apart(known, one)):
            continue
        best = (max if one.more else min)(known, key=lambda row, name=one.column: row[name])
        found.setdefault(best["point"], Pick(best, [])).measures.append(one)
    return list(found.values())


def tells_apart(rows: Sequence[Row], measure: Measure) -> bool:
    """Whether a measure has more than one value."""
    return len({row[measure.column] for row in rows if is_number(row.get(measure.column))}) > 1


def is_number(value: Any) -> bool:
    """Whether a cell holds a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _searched(search: Mapping[str, Any] | None) -> list[Measure]:
    """The measures of a search, in its direction."""
    given = (search or {}).get("objective")
    known = {one.column: one for one in MEASURES}
    found = []
    for one in given if isinstance(given, list) else [given]:
        metric = one.get("metric") if isinstance(one, Mapping) else one
        column = _SEARCHED.get(str(metric))
        if column is None:
            continue
        more = isinstance(one, Mapping) and one.get("direction") == "maximize"
        more = more or (not isinstance(one, Mapping) and column in known and known[column].more)
        name = known[column].name if column in known else str(metric)
        found.append(Measure(column, name, more, f"Best {metric}"))
    return found
