"""The gate of a sweep: every point planned before the first one starts, with the verdicts of `llmsys plan`.

Policies are those of `gate.policy`. `off`: nothing is planned. `warn`: what does not fit runs all the same.
`skip`: it is skipped. `error`: the sweep is refused. What the planner cannot plan at all, such as a value out
of range, cannot run either, and is skipped under `warn` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.errors import DoesNotFit, unknown_name
from llmsys_exp.sweeps.gate.outcomes import Outcome, Outcomes
from llmsys_exp.sweeps.points.composing import Composer
from llmsys_exp.sweeps.points.point import Gated, Point
from llmsys_exp.sweeps.points.settings import Setting, one_setting

RUNS, TIGHT, SKIPPED = "runs", "tight", "skipped"
SHOWN = 3
POLICIES = tuple(policy.value for policy in GatePolicy)


def gate_points(
    points: Sequence[Point], *, base: Sequence[str], verb: str, policy: str | None = None, fill: bool = False
) -> list[Gated]:
    """Plan every point.

    Args:
        points: as `points_of` returns them.
        base: overrides that they share.
        verb: `train` or `infer`.
        policy: None: what `gate.policy` of each point says.
        fill: put in the place of a point that does not fit the one that its cheapest change leads to.

    Raises:
        DoesNotFit: under the policy `error`, naming the points that do not fit.
    """
    if policy is not None and policy not in POLICIES:
        raise unknown_name("policy of the gate", policy, POLICIES)
    composer = Composer(base)
    known: dict[str, Setting] = {}
    settings = [tuple(_setting(known, text) for text in point.overrides) for point in points]
    resolved = [composer.resolve(one) for one in settings]
    policies = [policy or str(one.value("gate.policy")) for one in resolved]
    asked = [place for place, one in enumerate(policies) if one != GatePolicy.off.value]
    found = Outcomes(verb).of([resolved[place] for place in asked])
    outcomes: list[Outcome | None] = [None] * len(points)
    for place, outcome in zip(asked, found, strict=True):
        outcomes[place] = outcome
    gated = [_gated(*row) for row in zip(points, outcomes, policies, strict=True)]
    if fill:
        gated = _filled(composer, verb, gated, outcomes, settings)
    _refuse(gated, policies)
    return gated


def _setting(known: dict[str, Setting], text: str) -> Setting:
    if text not in known:
        known[text] = one_setting(text)
    return known[text]


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
    told = [
        f"point {one.point.number} ({' '.join(one.point.overrides)}): {reason(one)}" for one in bad[:SHOWN]
    ]
    more = [] if len(bad) <= SHOWN else [f"and {len(bad) - SHOWN} more"]
    raise DoesNotFit(
        f"Not started: {len(bad)} of {len(gated)} points would not run",
        why="; ".join([*told, *more]),
        do="Skip them with gate=skip, or run them anyway with gate=warn",
    )


def reason(gated: Gated) -> str:
    """Say in one line why a point does not fit."""
    figures = gated.figures
    if "refused" in figures:
        return str(figures["refused"])
    # without GPUs, a rank's share of main memory stands where a GPU's would
    place = {"gpu": "a rank", "host": "main memory", "disk": "the disk"}[figures["where"]]
    limit = figures["limit_gib"]
    said = f"needs {figures['needed_gib']:.1f} GiB" if figures["needed_gib"] is not None else "does not fit"
    of = "" if limit is None else f", and {place} has {limit:.1f} GiB for it"
    return f"{said}{of}" + (f"; fits with {gated.fix}" if gated.fix else "")


def _filled(
    composer: Composer,
    verb: str,
    gated: list[Gated],
    outcomes: Sequence[Outcome | None],
    settings: Sequence[tuple[Setting, ...]],
) -> list[Gated]:
    """Replace skipped points; one whose replacement is in the sweep already stays skipped and names it."""
    numbers = {one.point.key: one.point.number for one in gated}
    wanted: list[tuple[int, Point, tuple[Setting, ...]]] = []
    for place, (one, outcome) in enumerate(zip(gated, outcomes, strict=True)):
        if one.verdict != SKIPPED or outcome is None or not outcome.fix:
            continue
        fix = [one_setting(text, where="--fill") for text in outcome.fix]
        keys = {setting.key for setting in fix}
        changed = (*(own for own in settings[place] if own.key not in keys), *fix)
        key = composer.key(composer.resolve(changed))
        if key in numbers:
            told = {**one.figures, "filled_by": numbers[key]}
            gated[place] = replace(one, figures=told)
            continue
        numbers[key] = one.point.number
        point = Point(one.point.number, key, tuple(setting.text for setting in changed))
        wanted.append((place, point, changed))
    found = Outcomes(verb).of([composer.resolve(changed) for _, _, changed in wanted])
    for (place, point, _), outcome in zip(wanted, found, strict=True):
        if outcome.fits:
            verdict = RUNS if outcome.sure else TIGHT
            before = gated[place].point.overrides
            gated[place] = Gated(point, verdict, outcome.figures, filled_from=before)
    return gated
