"""The gate's dry run: with `gate.tier=dryrun` a job near its limit is run as one rank before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable

from llmsys_exp.config.schema import Config, GatePolicy, GateTier
from llmsys_exp.dryrun.checks import DryAsk
from llmsys_exp.dryrun.run import DryRun, run_dry
from llmsys_exp.errors import UserError
from llmsys_exp.jobs import gate
from llmsys_exp.plan import Plan
from llmsys_exp.plan.case import CPU
from llmsys_exp.report.console import Console
from llmsys_exp.report.tier_text import show_dryrun
from llmsys_exp.sweeps.running.processes import TAG

TIGHT = "tight"
Runs = Callable[[Plan, DryAsk, Console], DryRun]


def pass_gate(plan: Plan, console: Console, *, run: Runs = run_dry) -> list[str]:
    """Return warnings to print for a training job that may start, as `jobs.gate.check` does.

    A point of a sweep was dry-run before the sweep began, when its GPU was free.

    Raises:
        DoesNotFit: when it may not start.
        UserError: when a dry run is due and cannot take place.
    """
    if TAG in os.environ or not is_wanted(plan.config) or plan.verdict is None or plan.verdict.label != TIGHT:
        return gate.check(plan)
    dry = run(plan, DryAsk(), console)
    show_dryrun(console, dry)
    if not dry.is_conclusive:
        return [*gate.check(plan), "The dry run says nothing of the limit: see above"]
    return gate.judge(
        plan.config.gate.policy,
        fits=dry.outcome.survived,
        lines=lambda: [f"in its dry run {dry.outcome.ending()}"],
    )


def is_wanted(config: Config) -> bool:
    """Return whether the gate is to dry-run what is near the limit.

    Raises:
        UserError: on the CPU, where a dry run has no limit.
    """
    if config.gate.tier is not GateTier.dryrun or config.gate.policy is GatePolicy.off:
        return False
    if config.hardware.gpu == CPU:
        raise UserError(
            "On the CPU a dry run has no limit that a job could break",
            where="gate.tier=dryrun with hardware=cpu",
            do="Leave gate.tier=formula",
        )
    return True
