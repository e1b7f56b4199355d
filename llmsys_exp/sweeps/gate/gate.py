"""The gate of a sweep: every point planned before the first one starts, with the verdicts of `llmsys plan`.

Policies are those of `gate.policy`. `off`: nothing is planned. `warn`: what does not fit runs all the same.
`skip`: it is skipped. `error`: the sweep is refused. What the planner cannot plan at all, such as a value out
of range, cannot run either, and is skipped under `warn` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.errors import DoesNotFit, unknown_name
from llmsys_exp.sweeps.gate.dryrun import confirmed
from llmsys_exp.sweeps.gate.outcomes import Outcome, Outcomes
from llmsys_exp.sweeps.gate.timing import Lengths
from llmsys_exp.sweeps.points.composing import Composer, Resolved
from llmsys_exp.sweeps.points.point import Gated, Point, Points, shared_overrides
from llmsys_exp.sweeps.points.settings import Setting, one_setting

RUNS, TIGHT, SKIPPED = "runs", "tight", "skipped"
SHOWN = 3
TRAIN = "train"
POLICY = "gate.policy"
POLICIES = tuple(policy.value for policy in GatePolicy)


def gate_points(
    found: Points,
    *,
    verb: str,
    policy: str | None = None,
    fill: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Gated]:
    """Plan every point.

    Args:
        found: as `points_of` returns them.
        verb: `train` or `infer`.
        policy: None: what `gate.policy` of each point says.
        fill: put in the place of a point that does not fit the one that its cheapest change leads to.
        tell: gets a line for each job that is simulated or dry-run.

    Raises:
        UserError: where a point is to be dry-run, and cannot be.
        DoesNotFit: under the policy `error`, naming the points that do not fit.
    """
    if policy is not None and policy not in POLICIES:
        raise unknown_name("policy of the gate", policy, POLICIES)
    points, resolved = found.points, found.resolved
    policies = [policy] * len(points) if policy is not None else _policies(resolved)
    asked = [place for place, one in enumerate(policies) if one != GatePolicy.off.value]
    judged = _judged(verb, [resolved[place] for place in asked], tell)
    outcomes: list[Outcome | None] = [None] * len(points)
    lengths = Lengths()
    for place, outcome in zip(asked, judged, strict=True):
        outcomes[place] = lengths.told(resolved[place], outcome)
    gated = [_gated(*row) for row in zip(points, outcomes, policies, strict=True)]
    if fill:
        gated = _filled(Composer(found.base), verb, gated, outcomes, tell)
    _refuse(gated, policies)
    return gated


def _judged(verb: str, points: Sequence[Resolved], tell: Callable[[str], None]) -> list[Outcome]:
    judged = Outcomes(verb, tell=tell).of(points)
    return confirmed(points, judged, tell=tell) if verb == TRAIN else judged


def _policies(resolved: Sequence[Resolved]) -> list[str]:
    """Return the policy of each point; those that a point does not set itself are looked up once."""
    known: dict[tuple[Any, ...], str] = {}
    found: list[str] = []
    for one in resolved:
        alike = (id(one.tree), *[setting.text for setting in one.settings if setting.key == POLICY])
        if alike not in known:
            known[alike] = str(one.value(POLICY))
        found.append(known[alike])
    return found


def _gated(point: Point, outcome: Outcome | None, policy: str) -> Gated:
    if outcome is None:
        return Gated(point, RUNS, {})
    fix = None if outcome.fix is None else outcome.fix_text
    if outcome.fits:
        return Gated(point, RUNS if outcome.sure else TIGHT, outcome.figures, fix)
    runs = policy == GatePolicy.warn.value and not outcome.refused
    return Gated(point, TIGHT if runs else SKIPPED, outcome.figures, fix)


def _refuse(gated: Sequence[Gated], policies: Sequence[str]) -> None:
    """Refuse the sweep where the policy says so.

    Raises:
        DoesNotFit: naming the first points.
    """
    bad = [
        one
        for one, policy in zip(gated, policies, strict=True)
        if one.verdict == SKIPPED and policy == GatePolicy.error.value
    ]
    if not bad:
        return
    shared = shared_overrides([one.point for one in gated])
    told = [f"point {one.point.number} ({one.point.own(shared)}): {reason(one)}" for one in bad[:SHOWN]]
    raise PointsDoNotFit(
        f"Not started: {len(bad)} of {len(gated)} points would not run",
        why="\n".join([*told, *([] if len(bad) <= SHOWN else [f"and {len(bad) - SHOWN} more"])]),
        do="Skip them with gate=skip, run what their changes lead to with gate=skip --fill, or run them "
        "anyway with gate=warn",
    )


class PointsDoNotFit(DoesNotFit):
    """Points that do not fit: a line for each, and what to do about them last."""

    def __str__(self) -> str:
        lines = [f"{self.what}:", *[f"  {line}" for line in self.why.split("\n")], f"{self.do}."]
        return "\n".join(lines)


def place_of(figures: Mapping[str, Any]) -> str:
    """Say what a point is too large for."""
    # without GPUs, a rank's share of main memory stands where a GPU's would
    rank = "a GPU" if "device_gib" in figures else "a rank"
    return {"gpu": rank, "host": "main memory", "disk": "the disk"}[figures["where"]]


def reason(gated: Gated) -> str:
    """Say in one line why a point does not fit."""
    figures = gated.figures
    if "refused" in figures:
        return str(figures["refused"])
    if "not_forecast" in figures:
        return str(figures["not_forecast"])
    place, limit = place_of(figures), figures["limit_gib"]
    said = f"needs {_size(figures['needed_gib'])}" if figures["needed_gib"] is not None else "does not fit"
    if "dryrun" in figures:
        said = f"does not get through its dry run: {figures['dryrun']}"
    of = "" if limit is None else f", and {place} has {_size(limit)} for it"
    there = f", which is point {figures['filled_by']}" if "filled_by" in figures else ""
    return f"{said}{of}" + (f"; fits with {gated.fix}{there}" if gated.fix else "")


def _size(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 0.05 else f"{gib * 1024:.1f} MiB"


def _filled(
    composer: Composer,
    verb: str,
    gated: list[Gated],
    outcomes: Sequence[Outcome | None],
    tell: Callable[[str], None],
) -> list[Gated]:
    """Replace skipped points; one whose replacement is in the sweep already stays skipped and names it."""
    numbers = {one.point.key: one.point.number for one in gated}
    wanted: list[tuple[int, Point, tuple[Setting, ...]]] = []
    for place, (one, outcome) in enumerate(zip(gated, outcomes, strict=True)):
        if one.verdict != SKIPPED or outcome is None or not outcome.fix:
            continue
        fix = [one_setting(text, where="--fill") for text in outcome.fix]
        keys = {setting.key for setting in fix}
        own = [one_setting(text) for text in one.point.overrides]
        changed = (*(setting for setting in own if setting.key not in keys), *fix)
        key = composer.key(composer.resolve(changed))
        if key in numbers:
            told = {**one.figures, "filled_by": numbers[key]}
            gated[place] = replace(one, figures=told)
            continue
        numbers[key] = one.point.number
        point = Point(one.point.number, key, tuple(setting.text for setting in changed))
        wanted.append((place, point, changed))
    resolved = [composer.resolve(changed) for _, _, changed in wanted]
    lengths = Lengths()
    for (place, point, _), one, judged in zip(wanted, resolved, _judged(verb, resolved, tell), strict=True):
        outcome = lengths.told(one, judged)
        if outcome.fits:
            verdict = RUNS if outcome.sure else TIGHT
            before = gated[place].point.overrides
            gated[place] = Gated(point, verdict, outcome.figures, filled_from=before)
    return gated
