"""Asks every rival for every measured row that survived; one JSON object a line on standard output.

    VENV/bin/python -m benchmarks.rivals.run > benchmarks/results/rivals-DATE.jsonl

VENV is what `benchmarks/rivals/setup.sh` made. A line has `id`, `rival`, `version`, `metric`, and either
`predicted_gib` or `out_of_scope` with the reason; a rival that fails where it should answer gets `failed`.
"""

from __future__ import annotations

import json
import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.rivals import engines, packages, rules
from benchmarks.rivals.rows import OutOfScope, Rival, Row, survivors

RIVALS = [*engines.RIVALS, *packages.RIVALS, *rules.RIVALS]


def version_of(rival: Rival) -> str:
    """Installed version, or the reason why there is none."""
    if not rival.package:
        return rival.version
    try:
        return version(rival.package)
    except PackageNotFoundError:
        return "not installed"


def answer(rival: Rival, row: Row) -> dict[str, Any]:
    """What one rival says of one row."""
    line: dict[str, Any] = {
        "id": row.id, "rival": rival.name, "version": version_of(rival), "metric": rival.metric,
    }  # fmt: skip
    try:
        return line | {"predicted_gib": round(rival.predict(row), 4)}
    except OutOfScope as reason:
        return line | {"out_of_scope": str(reason)}
    except Exception as error:  # a rival's failure is a result, not the end of the run
        return line | {"failed": f"{type(error).__name__}: {error}"}


def main() -> None:
    logging.disable(logging.WARNING)
    for row in survivors():
        for rival in RIVALS:
            sys.stdout.write(json.dumps(answer(rival, row)) + "\n")


if __name__ == "__main__":
    main()
