"""Points that the gate skipped, judged once more with the settings that they are to be tried again with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.gate.gate import POLICY, SKIPPED, gate_points, reason
from llmsys_exp.sweeps.ledger.ledger import PointState
from llmsys_exp.sweeps.points.composing import Composer
from llmsys_exp.sweeps.points.point import Point, Points
from llmsys_exp.sweeps.points.settings import one_setting


def still_skipped(
    sweep: Sweep, again: Mapping[int, PointState], *, tell: Callable[[str], None] = lambda text: None
) -> dict[int, str]:
    """Return the points that the gate would skip again, each with the reason.

    Args:
        sweep: the sweep.
        again: points with the settings that they are to be planned with. A policy of `warn` or `off` among
            these lets them pass; `error` skips them here, as the sweep has long begun.
        tell: gets a line for each job that is simulated or dry-run.

    Raises:
        ConfigError: when the settings of a point cannot be composed.
    """
    composer = Composer(sweep.base)
    texts = {number: sweep.points[number - 1].overrides + now.overrides for number, now in again.items()}
    resolved = {n: composer.resolve([one_setting(text) for text in own]) for n, own in texts.items()}
    groups: dict[str, list[int]] = {}
    for number, one in resolved.items():
        policy = str(one.value(POLICY))
        groups.setdefault(GatePolicy.skip.value if policy == GatePolicy.error.value else policy, []).append(
            number
        )
    found: dict[int, str] = {}
    for policy, numbers in groups.items():
        points = tuple(Point(n, composer.key(resolved[n]), texts[n]) for n in numbers)
        asked = Points(points, 0, sweep.base, tuple(resolved[n] for n in numbers))
        for one in gate_points(asked, verb=sweep.verb, policy=policy, tell=tell):
            if one.verdict == SKIPPED:
                found[one.point.number] = reason(one)
    return dict(sorted(found.items()))
