"""`llmsys plan`: does it fit, why, and which settings would run. Starts nothing, writes what is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.hydra_verb import Point, Request, run_verb
from llmsys_exp.cli.options import TableOptions, split_options, split_table_options
from llmsys_exp.cli.plan_answers import Answer, plan_and_answer
from llmsys_exp.cli.plan_served import answer_served
from llmsys_exp.cli.plan_tiers import TierOptions, check_swept, split_tier_options
from llmsys_exp.config.schema import Config, GatePolicy
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_OK
from llmsys_exp.plan.serving_step import only_serves
from llmsys_exp.report.console import Console

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan


def run(arguments: Sequence[str]) -> int:
    """Plan one point or many."""
    tables, rest = split_table_options(arguments)
    tier, rest = split_tier_options(rest)
    tier = replace(tier, force=tables.force)
    options, others = split_options(rest)
    if not options.help and any(text in ("-m", "--multirun") for text in others):
        check_swept(tier)
        return _run_sweep(tables, tier, rest)
    if not options.help and (tables.files or tables.axes):
        from llmsys_exp.report.plan_output import check_output

        check_output(tables, swept=None)
    if not options.help and tier.files:
        from llmsys_exp.report.table_files import check_files

        check_files(tier.files, force=tables.force)
    return run_verb("plan", rest, lambda request: plan_point(request, tables, tier), _no_points)


def plan_point(request: Request, tables: TableOptions, tier: TierOptions) -> int:
    """Resolve one configuration, print the plan, write the files asked for."""
    from llmsys_exp.runs.folder import check_name

    check_name(request.config.name)
    planned = _Planned(request.config, tier, _notes(request.options.json))
    if request.options.json:
        content = {"overrides": list(request.overrides), **planned.to_dict()}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        planned.show(Console.on(sys.stdout))
    planned.write(_notes(request.options.json))
    if tables.files:
        from llmsys_exp.report.plan_output import write_output
        from llmsys_exp.report.plan_rows import override_values

        row = {"point": 1, "overrides": override_values(request.overrides), **planned.row()}
        write_output(_notes(request.options.json), tables, [row])
    policy = request.config.gate.policy
    refused = not planned.fits and policy in (GatePolicy.error, GatePolicy.skip)
    return EXIT_DOES_NOT_FIT if refused else EXIT_OK


class _Planned:
    """One configuration, planned: its training, its serving, or both."""

    def __init__(self, config: Config, tier: TierOptions, progress: Console) -> None:
        self._training: Plan | None = None
        self._answer, alone = Answer(True), only_serves(config)
        if not alone:
            self._training, self._answer = plan_and_answer(config, tier, progress)
        self._served = answer_served(config, tier, lambda text: progress.line(f"  {text}"), alone=alone)
        self._asks_for_sglang = config.inference.engine != "transformers"

    @property
    def fits(self) -> bool:
        """Whether all of it does."""
        return self._answer.fits and (self._served is None or self._served.fits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        from llmsys_exp.plan import plan_to_dict

        content = {} if self._training is None else {**plan_to_dict(self._training), **self._answer.parts}
        return content if self._served is None else {**content, "serving": self._served.to_dict()}

    def show(self, console: Console) -> None:
        """Write it as text."""
        if self._training is not None:
            from llmsys_exp.report.plan_text import show_plan

            show_plan(console, self._training)
            self._answer.show(console)
        if self._served is not None:
            if self._training is not None:
                console.title("Serving")
            self._served.show(console)
        elif self._asks_for_sglang:
            console.line()
            console.line("  steps=[infer] shows what inference.engine needs.")

    def write(self, console: Console) -> None:
        """Make the files that a simulation was asked for."""
        self._answer.write(console)

    def row(self) -> dict[str, Any]:
        """Return the row of a table of plans: training's, where there is any."""
        from llmsys_exp.cli.plan_sweep import training_row

        if self._training is not None:
            return training_row(self._training)
        assert self._served is not None  # nothing is trained, so something is served
        return self._served.row()


def _run_sweep(tables: TableOptions, tier: TierOptions, arguments: Sequence[str]) -> int:
    from llmsys_exp.cli.plan_sweep import Sweep, count_points, swept_values
    from llmsys_exp.report.plan_output import check_output, write_output

    options, rest = split_options(arguments)
    swept = swept_values(rest)
    check_output(tables, swept=swept)
    total = count_points(swept) if swept else None
    sweep = Sweep(Console.on(sys.stdout), total=total, as_json=options.json, tier=tier)
    try:
        code = run_verb("plan", arguments, sweep.plan_point, sweep.end_point)
    except BaseException:
        sweep.show()  # whatever stopped the rest: what is done has been waited for
        if tables.files and sweep.rows:
            sys.stderr.write(f"Not written: {', '.join(map(str, tables.files.values()))}\n")
        raise
    sweep.show()
    if tables.files and sweep.rows:
        write_output(_notes(options.json), tables, sweep.rows)
    return code


def _notes(as_json: bool) -> Console:
    return Console.on(sys.stderr if as_json else sys.stdout)


def _no_points(point: Point, number: int) -> None:
    """Nothing to report: without a sweep there are no points."""
