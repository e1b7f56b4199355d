"""`llmsys plan`: does it fit, why, and which settings would run. Starts nothing, writes what is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from llmsys_exp.cli.hydra_verb import Point, Request, run_verb
from llmsys_exp.cli.options import TableOptions, split_options, split_table_options
from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_OK
from llmsys_exp.report.console import Console


def run(arguments: Sequence[str]) -> int:
    """Plan one point or many."""
    tables, rest = split_table_options(arguments)
    options, others = split_options(rest)
    if not options.help and any(text in ("-m", "--multirun") for text in others):
        return _run_sweep(tables, rest)
    if not options.help and (tables.files or tables.axes):
        from llmsys_exp.report.plan_output import check_output

        check_output(tables, swept=None)
    return run_verb("plan", rest, lambda request: plan_point(request, tables), _no_points)


def plan_point(request: Request, tables: TableOptions) -> int:
    """Resolve one configuration, print the plan, write the files asked for."""
    from llmsys_exp.plan import plan_to_dict, resolve
    from llmsys_exp.runs.folder import check_name

    check_name(request.config.name)
    plan = resolve(request.config)
    if request.options.json:
        content = {"overrides": list(request.overrides), **plan_to_dict(plan)}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        from llmsys_exp.report.plan_text import show_plan

        show_plan(Console.on(sys.stdout), plan)
    if tables.files:
        from llmsys_exp.report.plan_output import write_output
        from llmsys_exp.report.plan_rows import override_values, plan_row
        from llmsys_exp.report.plan_text import has_limit

        row = {"point": 1, "overrides": override_values(request.overrides)}
        row |= plan_row(plan, limited=has_limit(plan.config))
        write_output(_notes(request.options.json), tables, [row])
    refused = not plan.verdict.fits and plan.config.gate.policy in (GatePolicy.error, GatePolicy.skip)
    return EXIT_DOES_NOT_FIT if refused else EXIT_OK


def _run_sweep(tables: TableOptions, arguments: Sequence[str]) -> int:
    from llmsys_exp.cli.plan_sweep import Sweep, count_points, swept_values
    from llmsys_exp.report.plan_output import check_output, write_output

    options, rest = split_options(arguments)
    swept = swept_values(rest)
    check_output(tables, swept=swept)
    total = count_points(swept) if swept else None
    sweep = Sweep(Console.on(sys.stdout), total=total, as_json=options.json)
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
