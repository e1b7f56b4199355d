"""A sweep of `llmsys infer -m`, which keeps no ledger, as the same rows: read from its sweep.csv."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, PLANNED, SKIPPED
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.results.figures import FIGURES, NAMES
from llmsys_exp.sweeps.results.rows import FIRST, GATE, LAST, Results, Row, column_of
from llmsys_exp.sweeps.results.settings import setting_values, varied

WARM_CSV = "sweep.csv"
_STATES = {
    "complete": DONE,
    "failed": FAILED,
    "not started": SKIPPED,
    "stopped": FAILED,
    "not reached": PLANNED,
}


def read_warm_sweep(folder: Path) -> tuple[Sweep, Results]:
    """Return a sweep of inference runs and what came of it.

    Raises:
        UserError: when its table cannot be read.
    """
    file = folder / WARM_CSV
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            names, told = list(reader.fieldnames or ()), list(reader)
        settings = names[names.index("point") + 1 : names.index("state")]
        numbers = [int(one["point"]) for one in told]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError("The table of the sweep cannot be read", where=str(file), why=str(error)) from error
    texts = {
        number: [f"{key}={one[key]}" for key in settings if one[key]]
        for number, one in zip(numbers, told, strict=True)
    }
    own = {number: setting_values(given) for number, given in texts.items()}
    keys = varied(own)
    base = [text for text in next(iter(texts.values()), []) if text.partition("=")[0] not in keys]
    rows = tuple(_row(number, one, own[number], keys) for number, one in zip(numbers, told, strict=True))
    points = [
        Point(number, "", tuple(text for text in given if text.partition("=")[0] in keys))
        for number, given in texts.items()
    ]
    sweep = Sweep(folder.name, folder.parent.name, "infer", tuple(base), points, "")
    overrides = {number: tuple(given) for number, given in texts.items()}
    return sweep, Results(tuple(map(column_of, keys)), rows, overrides)


def _row(number: int, told: Mapping[str, str], own: Mapping[str, Any], keys: Sequence[str]) -> Row:
    state = _STATES.get(told["state"], PLANNED)
    figures = {NAMES.get(name, name): _number(told.get(name)) for name in told}
    empty = dict.fromkeys((*FIRST, *map(column_of, keys), *GATE, *FIGURES, *LAST))
    return {
        **empty,
        **{name: figures[name] for name in FIGURES if name in figures},
        "point": number,
        "state": state,
        "kind": told["state"] if state == FAILED and told["state"] != FAILED else None,
        **{column_of(key): own.get(key) for key in keys},
        "seconds": figures.get("answer_seconds"),
        "folder": told.get("folder") or None,
        "reason": told.get("error") or None if state == SKIPPED else None,
        "error": told.get("error") or None if state == FAILED else None,
    }


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return int(value) if value == int(value) else value
