"""Dry runs that the gate makes of what is near its limit, before a run and before a sweep; the GPU is played."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from dry_outcomes import T4, outcome_of, small_job

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import GatePolicy, GateTier
from llmsys_exp.config.tree import copy_of
from llmsys_exp.dryrun import gate
from llmsys_exp.dryrun.checks import DryAsk
from llmsys_exp.dryrun.run import DryRun
from llmsys_exp.dryrun.start import Bench
from llmsys_exp.errors import DoesNotFit, UserError
from llmsys_exp.plan import Plan, resolve
from llmsys_exp.report.console import Console
from llmsys_exp.sweeps.gate import dryrun as sweep_dryrun
from llmsys_exp.sweeps.gate.outcomes import Outcome as PointOutcome
from planner.units import GIB

QUIET = Console(io.StringIO())


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A small settled job."""
    return resolve(compose_config(small_job(tmp_path_factory.mktemp("model"))))


def _near(plan: Plan, *, tier: str = "dryrun", policy: str = "error") -> Plan:
    config = copy_of(plan.config)
    config.gate.tier, config.gate.policy = GateTier[tier], GatePolicy[policy]
    return replace(plan, config=config, verdict=replace(plan.verdict, label="tight"))


def _gate(plan: Plan, survived: bool, *, is_short: bool = False) -> tuple[list[str], int]:
    ran: list[Plan] = []
    limit = 20 * GIB if is_short else 12 * GIB

    def run(at: Plan, ask: DryAsk, console: Console) -> DryRun:
        ran.append(at)
        return DryRun(at, outcome_of(survived), Bench("python", T4, limit))

    return gate.pass_gate(plan, QUIET, run=run), len(ran)


def test_a_job_near_its_limit_is_decided_by_its_dry_run(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.delenv(gate.TAG, raising=False)
    assert _gate(_near(plan), True) == ([], 1)
    with pytest.raises(DoesNotFit, match="in its dry run memory runs out in backward"):
        _gate(_near(plan), False)
    assert "memory runs out" in _gate(_near(plan, policy="warn"), False)[0][0]
    assert _gate(_near(plan), False, is_short=True) == (
        ["The dry run says nothing of the limit: see above"],
        1,
    )


def test_no_dry_run_where_none_is_due(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.delenv(gate.TAG, raising=False)
    sure = replace(_near(plan), verdict=replace(plan.verdict, label="fits"))
    for other in (sure, _near(plan, tier="formula"), _near(plan, policy="off")):
        assert _gate(other, False) == ([], 0)
    monkeypatch.setenv(gate.TAG, "a sweep's")  # it was dry-run before the sweep began
    assert _gate(_near(plan), False) == ([], 0)
    monkeypatch.delenv(gate.TAG)
    on_cpu = copy_of(_near(plan).config)
    on_cpu.hardware.gpu = "cpu"
    with pytest.raises(UserError, match="On the CPU a dry run has no limit"):
        gate.is_wanted(on_cpu)


class _Resolved:
    """A point of a sweep, as far as its dry run looks at it."""

    def __init__(self, tier: str) -> None:
        self.settings, self._tier = (), tier

    def value(self, key: str) -> str:
        assert key == "gate.tier"
        return self._tier

    def config(self) -> str:
        return "its configuration"


def _point(*, fits: bool = True, sure: bool = False, where: str = "gpu") -> PointOutcome:
    label = "fits" if sure else "tight" if fits else "does not fit"
    figures = {"label": label, "where": where, "needed_gib": 11.9, "limit_gib": 12.0, "tier": "formula"}
    return PointOutcome(fits, sure, figures)


def test_points_near_the_limit_are_dry_run_once_for_each_plan(plan: Plan) -> None:
    near, beside = _point(), _point()
    outcomes = [near, near, _point(sure=True), _point(fits=False), _point(where="disk"), beside]
    points = [_Resolved("dryrun")] * 5 + [_Resolved("formula")]
    told: list[str] = []
    ran: list[Any] = []

    def run(survived: bool, limit: int = 12 * GIB) -> Callable[[Any], DryRun]:
        def dry(config: Any) -> DryRun:
            ran.append(config)
            return DryRun(plan, outcome_of(survived), Bench("python", T4, limit))

        return dry

    found = sweep_dryrun.confirmed(points, outcomes, tell=told.append, run=run(True))
    assert ran == ["its configuration"] and told[0].startswith("Dry run 1 of 1")
    assert found[0] is found[1] and found[2:] == outcomes[2:]
    assert (found[0].fits, found[0].sure) == (True, True)
    assert {**found[0].figures, "dryrun": ""} == {
        "label": "fits", "where": "gpu", "needed_gib": 3.0, "limit_gib": 12.0, "tier": "dryrun", "dryrun": "",
    }  # fmt: skip
    dead = sweep_dryrun.confirmed(points, outcomes, run=run(False))[0]
    assert (dead.fits, dead.figures["label"], dead.figures["needed_gib"]) == (False, "does not fit", None)
    unknown = sweep_dryrun.confirmed(points, outcomes, run=run(False, 20 * GIB))[0]
    assert unknown.fits and not unknown.sure and "a GPU too small to tell" in unknown.figures["dryrun"]
