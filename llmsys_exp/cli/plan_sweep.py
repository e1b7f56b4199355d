"""`llmsys plan -m`: plan every point, show progress while it lasts and one table at the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from math import prod
from typing import Any

from llmsys_exp.cli.hydra_verb import Point, Request, parse_flags
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.plan.serving_step import only_serves, plan_serving
from llmsys_exp.report.console import Console, gib
from llmsys_exp.report.plan_rows import failed_row, override_values, plan_row
from llmsys_exp.report.plan_table import show_rows, summary_line

CLEAR_LINE = "\r\x1b[2K"


class Sweep:
    """The points of one sweep. `plan_point` and `end_point` are what `run_verb` calls."""

    def __init__(self, console: Console, *, total: int | None, as_json: bool) -> None:
        """Begin a sweep.

        Args:
            console: where progress and table go.
            total: how many points will come, where that is known.
            as_json: write an object for each point instead, as it comes.
        """
        self.rows: list[dict[str, Any]] = []
        self._console, self._total, self._as_json = console, total, as_json
        self._started = time.monotonic()
        self._known: dict[Any, dict[str, Any]] = {}
        self._last: dict[str, Any] = {}
        self._repeated = 0
        if not as_json:
            # Hydra composes every point once before the first one is planned.
            self._rewrite(f"  composing {total or 'the'} points ...")

    def plan_point(self, request: Request) -> int:
        """Plan one point, or take over the forecast of an earlier one with the same settings."""
        from llmsys_exp.plan.resolve import forecast_settled, plan_to_dict, settle
        from llmsys_exp.runs.folder import check_name

        check_name(request.config.name)
        if only_serves(request.config):
            return self._plan_serving(request)
        settled = settle(request.config)
        known = self._known.get(settled.key)
        if known is None:
            plan = forecast_settled(settled)
            # Only plain values are kept: a forecast holds every allocation of the job.
            known = {"row": plan_row(plan, limited=settled.budget_bytes is not None), **plan_to_dict(plan)}
            self._known[settled.key] = known
        else:
            self._repeated += 1
        choices = [vars(choice) for choice in settled.choices]
        self._last = {
            **known["row"],
            "settings": {choice["key"]: choice["value"] for choice in choices},
            "chosen": [choice["key"] for choice in choices if not choice["given"]],
        }
        if self._as_json:
            parts = {name: known[name] for name in ("forecast", "verdict", "speed")}
            _write_object({"overrides": list(request.overrides), "choices": choices, **parts})
        return EXIT_OK

    def _plan_serving(self, request: Request) -> int:
        """Plan a point that trains nothing: what its engine would need."""
        from llmsys_exp.report.serving_text import serving_row

        plan = plan_serving(request.config)
        assert plan is not None  # nothing is trained, so something is served
        self._last = serving_row(plan)
        if self._as_json:
            _write_object({"overrides": list(request.overrides), "serving": plan.describe()})
        return EXIT_OK

    def end_point(self, point: Point, number: int) -> None:
        """Keep the row of a point, and tell of one that could not be planned."""
        figures = self._last if point.error is None else failed_row(point.error)
        row = {"point": number, "overrides": override_values(point.overrides), **figures}
        self.rows.append(row)
        if self._as_json:
            if point.error is not None:
                _write_object({"overrides": list(point.overrides), **error_object(point.error)})
            return
        if point.error is not None and (not self._console.is_terminal or "\n" in str(point.error)):
            self._rewrite("")
            sys.stderr.write(f"error: point {number} ({' '.join(point.overrides)}): {point.error}\n")
        self._show_progress(row, point.overrides)

    def show(self) -> None:
        """Write the table of what is done; nothing where JSON was asked for."""
        if self._as_json:
            return
        self._rewrite("")
        if not self.rows:
            return
        show_rows(self._console, self.rows, title="Points, GiB of one GPU or CPU rank")
        seconds = time.monotonic() - self._started
        text = summary_line(self.rows, seconds=seconds, repeated=self._repeated, total=self._total)
        self._console.line()
        self._console.line(text)

    def _show_progress(self, row: dict[str, Any], overrides: Sequence[str]) -> None:
        number = len(self.rows)
        of = f" of {self._total}" if self._total is not None and self._total >= number else ""
        need = f" {gib(row['required_bytes'])} GiB" if row["required_bytes"] is not None else ""
        self._rewrite(f"  {number}{of}  {row['verdict']}{need}  {' '.join(overrides)}")

    def _rewrite(self, text: str) -> None:
        """Replace the line of progress on a terminal; write nothing elsewhere."""
        if self._console.is_terminal:
            self._console.stream.write(CLEAR_LINE + text[: self._console.width - 1])
            self._console.stream.flush()


def error_object(error: UserError) -> dict[str, Any]:
    """Return an error as `--json` shows it."""
    return {"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}


def swept_values(rest: Sequence[str]) -> dict[str, int] | None:
    """Return for each override of a sweep how many values it takes; None where nothing is swept.

    Overrides that Hydra cannot read are left for Hydra to complain about.
    """
    if not any(text.startswith("-") for text in rest):
        return None
    flags = parse_flags(rest, "plan")
    if not flags.multirun:
        return None
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        overrides = OverridesParser.create().parse_overrides(flags.overrides)
    except HydraException:
        return {}
    return {
        override.get_key_element().lstrip("+~"): len(list(override.sweep_string_iterator()))
        if override.is_sweep_override()
        else 1
        for override in overrides
    }


def count_points(values: dict[str, int]) -> int:
    """Return how many points a sweep has."""
    return prod(values.values())


def _write_object(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()
