"""What the planner says of each point: points that plan alike are judged together, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmsys_exp.config.limits import setting_problem
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.config.tree import value_at
from llmsys_exp.errors import UserError
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.simulations import Simulations
from llmsys_exp.plan.unknown import is_unknown_model
from llmsys_exp.runs.folder import check_name
from llmsys_exp.sweeps.gate.changes import cheapest_changes
from llmsys_exp.sweeps.gate.disk import free_bytes, written_bytes
from llmsys_exp.sweeps.gate.outcome import Outcome, figures_of, refused
from llmsys_exp.sweeps.gate.playing import FITS, NEAR, NO_FIT, TIGHT, Judged, Plays, Size
from llmsys_exp.sweeps.gate.screen import SIZES, judge_structure
from llmsys_exp.sweeps.gate.serving import Served, judge_serving
from llmsys_exp.sweeps.gate.sharing import share_of
from llmsys_exp.sweeps.gate.simulated import Progress, judge_simulated, not_simulated
from llmsys_exp.sweeps.gate.timing import step_figures
from llmsys_exp.sweeps.points.composing import Resolved, Tree, typed
from llmsys_exp.sweeps.points.settings import Setting
from planner.training_case import TrainingCase

GPU = "hardware.gpu"
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
        "gate.policy", "gate.tier", "tracking.mirrors", "tracking.project", "paths.cache",
    }
)  # fmt: skip
"""Settings that no forecast depends on, and no check beside that of their own range."""
APART = UNPLANNED | set(SIZES)


@dataclass(eq=False)
class _Group:
    """Points whose plans differ in their sizes alone."""

    resolved: Resolved
    members: dict[Size, list[int]] = field(default_factory=lambda: {})


class Outcomes:
    """Judges many points.

    Args:
        verb: what runs them.
        most_plays: how many jobs may be played; 0: estimates alone, and nothing is simulated either.
        simulations: runs those of families that no formula knows.
        tell: hears of each job that is simulated.
    """

    def __init__(
        self,
        verb: str,
        *,
        most_plays: int = MOST_PLAYS,
        simulations: Simulations | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.plays = Plays(most_plays)
        self._verb, self._tell, self._estimates_alone = verb, tell, most_plays == 0
        self._simulations = simulations or Simulations(keep=True)
        self._unknown: dict[tuple[Any, Any], bool] = {}
        self._known: dict[str, str] = {}
        self._defaults: dict[int, tuple[Tree, tuple[Any, ...]]] = {}

    def of(self, points: Sequence[Resolved]) -> list[Outcome]:
        """Return what is known of each point."""
        found: dict[int, Outcome] = {}
        groups: dict[tuple[Any, ...], _Group] = {}
        for place, point in enumerate(points):
            size, planned, problem = self._taken_apart(point)
            if problem:
                found[place] = refused(problem)
                continue
            alike = (id(point.tree), *[one.text for one in planned])
            if alike not in groups:
                groups[alike] = _Group(Resolved(point.tree, tuple(planned)))
            groups[alike].members.setdefault(size, []).append(place)
        simulated = {group for group in groups.values() if self._is_simulated(group)}
        told = [group for group in simulated if group.resolved.value(GPU) != CPU]  # where nothing can be
        progress = Progress(self._tell, sum(len(group.members) for group in told))
        for group in groups.values():
            if group in simulated:
                outcomes = self._simulate(group, points, progress if group in told else None)
            else:
                outcomes = self._judge(group)
            for places, outcome in zip(group.members.values(), outcomes, strict=True):
                found.update(dict.fromkeys(places, outcome))
        return [found[place] for place in range(len(points))]

    def _is_simulated(self, group: _Group) -> bool:
        """Whether points train a model that no formula knows; its file is read once."""
        point = group.resolved
        model = point.value("model.path"), point.value("model.entry")
        if self._verb == "infer" or model[0] is None:
            return False
        if model not in self._unknown:
            self._unknown[model] = is_unknown_model(point.config())
        return self._unknown[model] and list(point.config().steps) != [Step.infer]

    def _simulate(
        self, group: _Group, points: Sequence[Resolved], progress: Progress | None
    ) -> list[Outcome]:
        """Judge points of a family that no formula knows."""
        config = group.resolved.config()
        try:
            check_name(config.name)
        except UserError as error:
            return [refused(str(error))] * len(group.members)
        if self._estimates_alone:
            return [not_simulated()] * len(group.members)
        served = judge_serving(config)
        outcomes: list[Outcome] = []
        for size, places in group.members.items():
            if progress is not None:
                own = [one.text for one in points[places[0]].settings if one.key not in UNPLANNED]
                progress.next(" ".join(own))
            one = judge_simulated(config, size, self._simulations)
            unserved = one.fits and served is not None and served.label == NO_FIT
            outcomes.append(_of_serving(served) if served is not None and unserved else one)
        return outcomes

    def _taken_apart(self, point: Resolved) -> tuple[Size, list[Setting], str]:
        """Return a point's sizes, what else its plan depends on, and what is wrong with the rest."""
        tree, problem = point.tree, ""
        if id(tree) not in self._defaults:
            self._defaults[id(tree)] = (tree, tuple([value_at(tree.config, key) for key in SIZES]))
        size: list[Any] = list(self._defaults[id(tree)][1])
        planned: list[Setting] = []
        for one in point.settings:
            if one.key in SIZES:
                size[SIZES.index(one.key)] = typed(one)
            elif one.key in UNPLANNED:
                problem = problem or self._problem(one)
            else:
                planned.append(one)
        return (size[0], size[1], size[2]), planned, problem

    def _problem(self, setting: Setting) -> str:
        """What is wrong with a setting that is not looked at with the rest of its point."""
        if setting.text not in self._known:
            problem = setting_problem(setting.key, to_plain(typed(setting)))
            self._known[setting.text] = "" if problem is None else str(problem)
        return self._known[setting.text]

    def _judge(self, group: _Group) -> list[Outcome]:
        config = group.resolved.config()
        sizes = list(group.members)
        try:
            check_name(config.name)
        except UserError as error:
            return [refused(str(error))] * len(sizes)
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
        free, written = free_bytes(config.paths.outputs), _Written(config)
        ranks, steps = config.hardware.gpus_per_node, step_figures(config, judged)
        outcomes: list[Outcome] = []
        for place, one in enumerate(judged):
            fix = fixes.get(place)
            if one.refused:
                outcomes.append(refused(one.refused))
            elif one.label != NO_FIT and (needed := written.of(one)) > free:
                outcomes.append(Outcome(False, False, figures_of(NO_FIT, "disk", needed, free, "formula")))
            else:
                texts = None if fix is None else fix.overrides
                figures = figures_of(one.label, one.where, one.needed_bytes, one.limit_bytes, one.tier)
                figures |= share_of(one, ranks) | steps[place]
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


class _Written:
    """Bytes that jobs of one configuration write; they do not depend on its sizes."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._known: dict[int, tuple[TrainingCase, int]] = {}

    def of(self, judged: Judged) -> int:
        case = judged.case
        if case is None or Step.train not in self._config.steps:
            return 0
        if id(case) not in self._known:
            self._known[id(case)] = (case, written_bytes(self._config, case))
        return self._known[id(case)][1]


def _of_serving(served: Served) -> Outcome:
    if served.refused:
        return refused(served.refused)
    figures = figures_of(served.label, "gpu", served.needed_bytes, served.limit_bytes, "formula")
    if served.cause:
        figures["cause"] = served.cause
    fits = served.label != NO_FIT
    fix = None if served.fix is None else tuple(served.fix.split())
    return Outcome(fits, fits and served.label not in (TIGHT, NEAR), figures, fix, served.fix or "")
