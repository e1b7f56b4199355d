"""Charts of a page as plain values, which the scripts of the page draw: see `assets/*.js` for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

Chart = dict[str, Any]
MOST_MARKS = 8
"""A setting with as many values has each of them marked."""
MOST_STEPS = 1_500
"""Points of a curve; a longer one is thinned out."""
_WIDE, _GEOMETRIC, _RATIO = 30, 8, 1.5


def axis(
    title: str, values: Iterable[Any], *, marks: bool = False, log: bool = False
) -> tuple[Chart, list[Any]]:
    """Return the axis for values and where each lies on it: numbers as they are, words by their place.

    Args:
        title: what the axis shows.
        values: numbers or words, None where there is none.
        marks: mark each value where there are few, as of a setting.
        log: logarithmic wherever that can be, as what was sampled so.
    """
    values = list(values)
    known = [value for value in values if value is not None]
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known):
        words = sorted(dict.fromkeys(map(word, known)))
        places = {text: place for place, text in enumerate(words)}
        at = [None if value is None else places[word(value)] for value in values]
        return {"title": title, "kind": "words", "words": words}, at
    distinct = sorted(set(known))
    is_log = is_geometric(distinct) or (log and bool(distinct) and distinct[0] > 0)
    shape: Chart = {"title": title, "kind": "log" if is_log else "linear"}
    if marks and 0 < len(distinct) <= MOST_MARKS:
        shape["marks"] = distinct
    return shape, values


def is_geometric(values: Sequence[float]) -> bool:
    """Whether sorted values are better shown on a logarithmic axis: they span much, or double.

    >>> is_geometric([1, 2, 4, 8]), is_geometric([1, 2, 3, 4]), is_geometric([1e-5, 1e-2])
    (True, False, True)
    """
    if len(values) < 2 or values[0] <= 0:
        return False
    span = values[-1] / values[0]
    doubles = len(values) > 2 and all(b / a >= _RATIO for a, b in pairwise(values))
    return span >= _WIDE or (doubles and span >= _GEOMETRIC)


def word(value: Any) -> str:
    """Write a value of a setting."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def lines(
    x_title: str, y_title: str, series: dict[str, list[tuple[float, float]]], *, may_be_log: bool = False
) -> Chart:
    """Return curves over steps; `series` is name -> points in order."""
    values = sorted(y for points in series.values() for _, y in points)
    is_log = may_be_log and bool(values) and values[0] > 0 and values[-1] / values[0] >= _WIDE
    kind = "log" if is_log else "linear"
    return {
        "kind": "lines",
        "x": {"title": x_title},
        "y": {"title": y_title, "kind": kind},
        "series": [{"name": name, "points": thinned(points)} for name, points in series.items() if points],
    }


def thinned(points: Sequence[Any], most: int = MOST_STEPS) -> list[Any]:
    """Return at most so many points, evenly, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]
