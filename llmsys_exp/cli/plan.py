"""`llmsys plan`: does it fit, why, and which settings would run. Writes nothing and starts nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from llmsys_exp.cli.hydra_verb import Point, Request, run_verb
from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_OK
from llmsys_exp.report.console import VERDICT_STYLES, Console, gib


def run(arguments: Sequence[str]) -> int:
    """Plan one point or many."""
    return run_verb("plan", arguments, plan_point, _end_point)


def plan_point(request: Request) -> int:
    """Resolve a configuration and print the plan."""
    from llmsys_exp.plan import plan_to_dict, resolve
    from llmsys_exp.runs.folder import check_name

    check_name(request.config.name)
    plan = resolve(request.config)
    if request.options.json:
        content = {"overrides": list(request.overrides), **plan_to_dict(plan)}
        sys.stdout.write(json.dumps(content, indent=None if request.in_sweep else 2) + "\n")
    elif request.in_sweep:
        console = Console.on(sys.stdout)
        label = console.style(f"{plan.verdict.label:<13}", VERDICT_STYLES.get(plan.verdict.label, "bold"))
        fix = f"  (fits with {plan.verdict.fix})" if plan.verdict.fix else ""
        need, budget = gib(plan.forecast.required_bytes), gib(plan.verdict.budget_bytes)
        console.line(f"{label} {need:>8} of {budget:>7} GiB  {' '.join(request.overrides)}{fix}")
    else:
        from llmsys_exp.report.plan_text import show_plan

        show_plan(Console.on(sys.stdout), plan)
    refused = not plan.verdict.fits and plan.config.gate.policy in (GatePolicy.error, GatePolicy.skip)
    return EXIT_DOES_NOT_FIT if refused and not request.in_sweep else EXIT_OK


def _end_point(point: Point, number: int) -> None:
    if point.error is not None:
        sys.stderr.write(f"error: point {number} ({' '.join(point.overrides)}): {point.error}\n")
