"""Forecast a file of cases.

    python -m planner predict CASES.jsonl [--tier formula|estimate]

One JSON object a line in (`id`, `case`), one a line out in the same order. A case that cannot be planned
gives `id` and `error`, the others go on, and the exit code is 1. A file that cannot be read: 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from planner.errors import CaseError
from planner.forecast import Forecast
from planner.forecasting import TIERS, predict
from planner.units import GIB


def answer(line: str, number: int, tier: str) -> dict[str, Any]:
    """Forecast one line of the file."""
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        return {"id": f"line {number}", "error": f"not JSON: {error.msg} at column {error.colno}"}
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a pit of brackets
        return {"id": f"line {number}", "error": f"not JSON that can be read: {error}"}
    fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    if not isinstance(fields.get("case"), dict):
        return {"id": f"line {number}", "error": "a line is an object with id and case"}
    name = fields.get("id")
    head: dict[str, Any] = {"id": name if isinstance(name, (str, int)) else f"line {number}"}
    case: dict[str, Any] = fields["case"]
    try:
        forecast = predict(case, tier=tier)
    except CaseError as error:
        return {**head, "error": str(error)}
    body = forecast.to_dict()
    limit_gib = case.get("memory_limit_gib")
    if isinstance(forecast, Forecast) and limit_gib is not None:
        body |= under_limit(forecast, int(limit_gib * GIB))
    return {**head, **body}


def under_limit(forecast: Forecast, limit_bytes: int) -> dict[str, Any]:
    """The verdict on a limit and, where the job survives, what is reserved under it."""
    if not forecast.survives(limit_bytes):
        return {"fits": False}
    return {"fits": True, "peak_reserved_gib": round(forecast.reserved_under(limit_bytes) / GIB, 4)}


def answers(path: Path, tier: str) -> Iterator[dict[str, Any]]:
    """Forecast every line that is not blank."""
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield answer(line, number, tier)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m planner", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("predict", help="forecast each case of a jsonl file")
    verb.add_argument("cases", type=Path)
    verb.add_argument("--tier", choices=TIERS, default="formula")
    args = parser.parse_args(argv)
    failed, count = False, 0
    try:
        for result in answers(args.cases, args.tier):
            count += 1
            failed |= "error" in result
            print(json.dumps(result), flush=True)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (OSError, UnicodeDecodeError) as error:
        print(f"{args.cases} cannot be read: {error}", file=sys.stderr)
        return 2
    if not count:
        print(f"{args.cases} holds no cases: one JSON object a line, with id and case", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
