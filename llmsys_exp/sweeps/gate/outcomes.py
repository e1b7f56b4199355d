"""What the planner says of each point: points that plan alike are judged together, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmsys_exp.config.limits import setting_problem
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.config.tree import value_at
from llmsys_exp.errors import UserError
from llmsys_exp.runs.folder import check_name
from llmsys_exp.sweeps.gate.changes import Fix, cheapest_changes
from llmsys_exp.sweeps.gate.disk import free_bytes, written_bytes
from llmsys_exp.sweeps.gate.playing import FITS, NEAR, NO_FIT, TIGHT, Judged, Plays, Size
from llmsys_exp.sweeps.gate.screen import SIZES, judge_structure
from llmsys_exp.sweeps.gate.serving import Served, judge_serving
from llmsys_exp.sweeps.points.composing import Resolved, Tree, typed
from llmsys_exp.sweeps.points.settings import Setting
from planner.units import GIB

MOST_PLAYS = 16
"""How many jobs the gate of a sweep plays; a point near the limit beyond them is left to its own start."""
UNPLANNED = frozenset(
    {
        "seed", "training.epochs", "training.max_steps", "training.learning_rate", "training.weight_decay",
        "training.warmup_ratio", "training.warmup_steps", "training.scheduler", "training.adam_beta1",
        "training.adam_beta2", "training.adam_eps", "training.momentum", "training.gradient_clipping",
        "training.loss_scale", "training.initial_scale_power", "training.early_stop_min_delta",
        "training.bad_steps_allowed", "training.log_every", "method.lora.alpha", "method.lora.use_rslora",
        "data.limit", "data.heldout_limit", "data.template", "data.system", "data.train_on_prompt",
        "data.group_by_length", "data.score", "data.preview", "data.cache", "checkpoint.on_signal",
        "gate.policy", "tracking.mirrors", "tracking.project", "paths.cache",
    }
)  # fmt: skip
"""Settings that no forecast depends on, and no check beside that of their own range."""
APART = UNPLANNED | set(SIZES)


@dataclass(frozen=True)
class Outcome:
    """What is known of one point; `figures` as in `point.Gated`.

    Attributes:
        fits: whether the gate lets it pass.
        sure: whether the whole band of its forecast fits.
        fix: the cheapest change, as overrides.
        fix_text: the same with what it then needs.
    """

    fits: bool
    sure: bool
    figures: dict[str, Any]
    fix: tuple[str, ...] | None = None
    fix_text: str = ""

    @property
    def refused(self) -> bool:
        """Whether it cannot be planned at all."""
        return "refused" in self.figures


@dataclass
class _Group:
    """Points whose plans differ in their sizes alone."""

    resolved: Resolved
    members: dict[Size, list[int]] = field(default_factory=lambda: {})


class Outcomes:
    """Judges many points."""

    def __init__(self, verb: str, *, most_plays: int = MOST_PLAYS) -> None:
        self.plays = Plays(most_plays)
        self._verb = verb
        self._known: dict[str, str] = {}
        self._defaults: dict[int, tuple[Tree, Size]] = {}

    def of(self, points: Sequence[Resolved]) -> list[Outcome]:
        """Return what is known of each point."""
        found: dict[int, Outcome] = {}
        groups: dict[tuple[Any, ...], _Group] = {}
        for place, point in enumerate(points):
            problem = next(filter(None, map(self._problem, point.settings)), "")
            if problem:
                found[place] = _refused(problem)
                continue
            planned = tuple(
                [one for one in point.settings if one.key not in UNPLANNED and one.key not in SIZES]
            )
            group = groups.setdefault(
                (id(point.tree), *[one.text for one in planned]), _Group(Resolved(point.tree, planned))
            )
            group.members.setdefault(self._size(point), []).append(place)
        for group in groups.values():
            for places, outcome in zip(group.members.values(), self._judge(group), strict=True):
                found.update(dict.fromkeys(places, outcome))
        return [found[place] for place in range(len(points))]

    def _problem(self, setting: Setting) -> str:
        """What is wrong with a setting that is not looked at with the rest of its point."""
        if setting.text not in self._known:
            problem = None
            if setting.key in UNPLANNED:
                problem = setting_problem(setting.key, to_plain(typed(setting)))
            self._known[setting.text] = "" if problem is None else str(problem)
        return self._known[setting.text]

    def _size(self, point: Resolved) -> Size:
        tree = point.tree
        if id(tree) not in self._defaults:
            micro, accum, total = (value_at(tree.config, key) for key in SIZES)
            self._defaults[id(tree)] = (tree, (micro, accum, total))
        size = list(self._defaults[id(tree)][1])
        for one in point.settings:
            if one.key in SIZES:
                size[SIZES.index(one.key)] = typed(one)
        return size[0], size[1], size[2]

    def _judge(self, group: _Group) -> list[Outcome]:
        config = group.resolved.config()
        sizes = list(group.members)
        try:
            check_name(config.name)
        except UserError as error:
            return [_refused(str(error))] * len(sizes)
        if self._verb == "infer":
            config = replace(config, steps=[Step.infer])
        served = judge_serving(config)
        if list(config.steps) == [Step.infer]:
            assert served is not None  # nothing is trained, so something is served
            return [_of_serving(served)] * len(sizes)
        trained = self._train(config, sizes)
        if served is None or served.label != NO_FIT:
            return trained
        return [_of_serving(served) if outcome.fits else outcome for outcome in trained]

    def _train(self, config: Config, sizes: Sequence[Size]) -> list[Outcome]:
        judged, room = judge_structure(config, sizes, self.plays)
        bad = [place for place, one in enumerate(judged) if one.label == NO_FIT and not one.refused]
        fixes = dict(zip(bad, cheapest_changes([judged[place] for place in bad], room), strict=True))
        free = free_bytes(config.paths.outputs)
        outcomes: list[Outcome] = []
        for place, one in enumerate(judged):
            fix = fixes.get(place)
            if one.refused:
                outcomes.append(_refused(one.refused))
            elif one.label != NO_FIT and (lacking := _disk(config, one, free)):
                outcomes.append(lacking)
            else:
                texts = None if fix is None else fix.overrides
                figures = _figures(one.label, one.where, one.needed_bytes, one.limit_bytes, one.tier)
                outcomes.append(
                    Outcome(
                        one.label != NO_FIT,
                        one.label == FITS,
                        figures,
                        texts,
                        "" if fix is None else str(fix),
                    )
                )
        return outcomes


def _disk(config: Config, judged: Judged, free: int) -> Outcome | None:
    """What is said of a point whose files have no room; None where they have."""
    if judged.case is None or Step.train not in config.steps:
        return None
    needed = written_bytes(config, judged.case)
    if needed <= free:
        return None
    return Outcome(False, False, _figures(NO_FIT, "disk", needed, free, "formula"))


def _of_training(judged: Judged, fix: Fix | None) -> Outcome:
    label = judged.label
    figures = _figures(label, judged.where, judged.needed_bytes, judged.limit_bytes, judged.tier)
    texts, told = (None, "") if fix is None else (fix.overrides, str(fix))
    return Outcome(label != NO_FIT, label == FITS, figures, texts, told)


def _of_serving(served: Served) -> Outcome:
    if served.refused:
        return _refused(served.refused)
    figures = _figures(served.label, "gpu", served.needed_bytes, served.limit_bytes, "formula")
    if served.cause:
        figures["cause"] = served.cause
    fits = served.label != NO_FIT
    fix = None if served.fix is None else tuple(served.fix.split())
    return Outcome(fits, fits and served.label not in (TIGHT, NEAR), figures, fix, served.fix or "")


def _refused(message: str) -> Outcome:
    return Outcome(False, False, {"label": "refused", "refused": message})


def _figures(label: str, where: str, needed: float | None, limit: float | None, tier: str) -> dict[str, Any]:
    return {
        "label": label,
        "where": where,
        "needed_gib": None if needed is None else round(needed / GIB, 3),
        "limit_gib": None if limit is None else round(limit / GIB, 3),
        "tier": tier,
    }
