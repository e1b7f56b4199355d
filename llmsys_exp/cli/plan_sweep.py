"""`llmsys plan -m`: plan every point, show progress while it lasts and one table at the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.hydra_verb import Point, Request, parse_flags
from llmsys_exp.cli.plan_answers import beside, is_simulated
from llmsys_exp.cli.plan_served import answer_served
from llmsys_exp.cli.plan_tiers import SIMULATE, TierOptions, check_rank
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.plan.serving_step import only_serves
from llmsys_exp.report.console import Console, gib
from llmsys_exp.report.plan_rows import failed_row, override_values, plan_row
from llmsys_exp.report.plan_table import show_rows, summary_line
from llmsys_exp.report.plan_text import has_limit

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan

CLEAR_LINE = "\r\x1b[2K"


class Sweep:
    """The points of one sweep. `plan_point` and `end_point` are what `run_verb` calls."""

    def __init__(
        self, console: Console, *, total: int | None, as_json: bool, tier: TierOptions | None = None
    ) -> None:
        """Begin a sweep.

        Args:
            console: where progress and table go.
            total: how many points will come, where that is known.
            as_json: write an object for each point instead, as it comes.
            tier: which one answers.
        """
        from llmsys_exp.plan.simulations import Simulations

        self.rows: list[dict[str, Any]] = []
        self._console, self._total, self._as_json = console, total, as_json
        self._started = time.monotonic()
        self._known: dict[Any, dict[str, Any]] = {}
        self._last: dict[str, Any] = {}
        self._repeated = 0
        self._tier = tier or TierOptions()
        self._simulations = Simulations(self._tell, rank=self._tier.rank, keep=True)
        if not as_json:
            # Hydra composes every point once before the first one is planned.
            self._rewrite(f"  composing {total or 'the'} points ...")

    def plan_point(self, request: Request) -> int:
        """Plan one point, or take over the forecast of an earlier one with the same settings."""
        from llmsys_exp.runs.folder import check_name

        check_name(request.config.name)
        if only_serves(request.config):
            return self._plan_serving(request)
        if self._tier.name == SIMULATE:
            check_rank(self._tier, request.config)
        known, choices = self._planned(request.config)
        self._last = {
            **known["row"],
            "settings": {choice["key"]: choice["value"] for choice in choices},
            "chosen": [choice["key"] for choice in choices if not choice["given"]],
        }
        if self._as_json:
            parts = {name: value for name, value in known.items() if name not in ("row", "choices")}
            _write_object({"overrides": list(request.overrides), "choices": choices, **parts})
        return EXIT_OK

    def _planned(self, config: Config) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return row and plain values of a plan, and its choices."""
        from llmsys_exp.plan.resolve import forecast_settled, plan_of, settle
        from llmsys_exp.plan.unknown import settle_unknown

        if is_simulated(config, self._tier):
            plan = plan_of(settle_unknown(config, self._simulations))
            return _values(plan), [vars(choice) for choice in plan.choices]
        settled = settle(config)
        # a simulation also sees what the formula does not ask of a model
        key = (settled.key, config.model.path, config.model.entry)
        known = self._known.get(key)
        if known is None:
            plan = forecast_settled(settled)
            known = self._known[key] = self._beside(plan) if self._tier.name == SIMULATE else _values(plan)
        else:
            self._repeated += 1
        return known, [vars(choice) for choice in settled.choices]

    def _beside(self, plan: Plan) -> dict[str, Any]:
        """The values of a plan by formula, with those of a simulation beside them."""
        found = beside(plan, self._simulations)
        other, values = found.simulation.forecast, _values(found.plan)
        extra = {"simulated": gib(other.required_bytes), "apart": f"{100 * found.share:+.1f} %"}
        row = {**values["row"], "extra": {**extra, **values["row"]["extra"]}}
        return {**values, "row": row, SIMULATE: other.to_dict()}

    def _tell(self, text: str) -> None:
        """Show what is simulated now."""
        if not self._as_json:
            of = f" of {self._total}" if self._total else ""
            self._rewrite(f"  {len(self.rows) + 1}{of}  {text}")

    def _plan_serving(self, request: Request) -> int:
        """Plan a point that trains nothing: what its engine would need."""
        found = answer_served(request.config, self._tier, self._tell, alone=True)
        assert found is not None  # nothing is trained, so something is served
        self._last = found.row()
        if self._as_json:
            _write_object({"overrides": list(request.overrides), "serving": found.to_dict()})
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
        if count := self._simulations.count:
            text += f"  {count} simulation{'s' if count > 1 else ''}."
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


def training_row(plan: Plan) -> dict[str, Any]:
    """Return the row of a plan, forecast or not."""
    if plan.forecast is None:
        return failed_row(UserError("nothing is forecast", why=plan.why_not))
    return plan_row(plan, limited=has_limit(plan.config))


def _values(plan: Plan) -> dict[str, Any]:
    """Only plain values are kept: a forecast holds every allocation of the job."""
    from llmsys_exp.plan.resolve import plan_to_dict

    return {"row": training_row(plan), **plan_to_dict(plan)}


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
