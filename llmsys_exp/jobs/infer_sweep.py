"""Inference runs that differ in a few settings: all checked first, then answered by few starts of engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import DoesNotFit, UserError
from llmsys_exp.jobs.inference import InferJob, carry_out, prepare
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.serving import Served, check_gate
from llmsys_exp.jobs.warm import Engines
from llmsys_exp.report.console import Console
from llmsys_exp.report.plan_rows import first_line
from llmsys_exp.report.serving_text import show_serving

ALL = "all"
COMPLETE, FAILED, NOT_STARTED, STOPPED, WAITING = (
    "complete",
    "failed",
    "not started",
    "stopped",
    "not reached",
)


@dataclass
class SweepPoint:
    """One combination of settings and what became of it."""

    number: int
    overrides: tuple[str, ...]
    run: Run | None
    error: UserError | None = None
    """Why it was not composed, not started, or failed."""
    job: InferJob | None = None
    state: str = WAITING
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> Mapping[str, Any]:
        """What the worker found; empty unless the point is complete."""
        return self.manifest.get("results", {}).get("infer", {})


def check_points(points: Sequence[SweepPoint]) -> None:
    """Settle every point before the first is started, and share what starts of engines they can share.

    A point that is refused keeps its error and is left out.
    """
    for point in points:
        if point.error is None and point.run is not None:
            try:
                point.job = prepare(point.run)
            except UserError as error:
                point.error = error
    share_starts([point for point in points if point.job is not None])
    for point in points:
        if point.job is not None:
            try:
                check_gate(point.job.served.plan)
            except DoesNotFit as error:
                point.error, point.job = error, None
        if point.error is not None:
            point.state = NOT_STARTED


def share_starts(points: Sequence[SweepPoint]) -> None:
    """Give points whose engines differ only in what was chosen for them the start of one that asks for more.

    Without it, every length of answer would bring a context of its own, and every context another start. A
    start that does not fit is nobody else's: points that fit on their own still run.
    """
    groups: dict[str, list[SweepPoint]] = {}
    for point in points:
        groups.setdefault(_asked_key(point), []).append(point)
    for group in groups.values():
        starts = [point.job.served for point in group if point.job is not None and point.job.served.plan.fits]
        starts.sort(key=_room, reverse=True)
        for point in group:
            assert point.job is not None
            mine = point.job.served
            start = next((one for one in starts if _covers(one, mine)), mine)
            point.job = replace(point.job, served=_with_start(mine, start))


def in_order(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Return the points that are to run, those of one engine start next to each other."""
    waiting = [point for point in points if point.job is not None]
    keys = list(dict.fromkeys(_key(point) for point in waiting))
    return sorted(waiting, key=lambda point: (keys.index(_key(point)), _is_all(point), point.number))


def run_points(
    points: Sequence[SweepPoint], console: Console, *, on_complete: Callable[[], None] = lambda: None
) -> None:
    """Run every point that may be started; one that fails ends no other.

    Args:
        points: all of the sweep.
        console: where they are shown.
        on_complete: called when a point is complete.

    Raises:
        KeyboardInterrupt: at once; points that were finished by then stay complete.
    """
    order = in_order(points)
    shown = ""
    with Engines() as engines:
        for place, point in enumerate(order, start=1):
            assert point.job is not None
            differs = " ".join(_differing(point, points)) or "defaults"
            console.title(f"Point {point.number} ({place} of {len(order)}): {differs}")
            if _key(point) != shown:
                shown = _key(point)
                show_serving(console, point.job.served.plan)
                console.line()
            _run_point(point, console, engines)
            if point.state == COMPLETE:
                on_complete()


def _run_point(point: SweepPoint, console: Console, engines: Engines) -> None:
    assert point.job is not None
    try:
        point.manifest = carry_out(point.job, console, engines)
        point.state = COMPLETE
    except UserError as error:
        point.state, point.error = FAILED, error
        console.line(console.style(f"  failed: {first_line(error)}", "red"))
    except KeyboardInterrupt:
        point.state = STOPPED
        raise


def _differing(point: SweepPoint, points: Sequence[SweepPoint]) -> list[str]:
    """Return the overrides of a point that not all of them have."""
    shared = set(points[0].overrides).intersection(*(one.overrides for one in points))
    return [text for text in point.overrides if text not in shared]


def _key(point: SweepPoint) -> str:
    return point.job.served.engine_key if point.job is not None else ""


def _is_all(point: SweepPoint) -> bool:
    # transformers answers all prompts at once in another way, for which it starts again
    return point.job is not None and point.job.config.inference.batch_size == ALL


def _asked_key(point: SweepPoint) -> str:
    """Name what a user asked of an engine's start, with settings that are open left open."""
    assert point.job is not None and point.run is not None
    config: Config = point.run.config
    asked = {
        "sglang": to_plain(config.inference.sglang),
        "server": to_plain(config.inference.server),
        "engine": config.inference.engine,
        "model": to_plain(config.model),
        "hardware": to_plain(config.hardware),
        "margin_gib": config.gate.margin_gib,
        "dtype": config.training.dtype.name,
        "attention": config.training.attention,
        "quantization": to_plain(config.method.quantization),
        "launcher": to_plain(config.launcher),
        "files": [point.job.inputs.model_folder, point.job.inputs.adapter_folder],
        "seed": config.seed if config.model.weights.name == "random" else None,
    }
    return json.dumps(asked, sort_keys=True, default=str)


def _room(served: Served) -> tuple[int, int]:
    settings = served.config.inference.sglang
    sizes = (settings.context_length, settings.max_running_requests)
    return tuple(0 if size == AUTO else int(size) for size in sizes)  # type: ignore[return-value]


def _covers(start: Served, other: Served) -> bool:
    """Whether one start of the engine takes all that another does: as long texts, as many at a time."""
    if not other.plan.fits:  # its own refusal names what would help
        return start is other
    return all(one >= two for one, two in zip(_room(start), _room(other), strict=True))


def _with_start(served: Served, start: Served) -> Served:
    """Return one point's settings with another's start of the engine."""
    if served.engine_key == start.engine_key:
        return served
    plan, other = served.plan, start.plan
    inference = replace(plan.config.inference, sglang=other.config.inference.sglang)
    mine = [one for one in plan.choices if not one.key.startswith("inference.sglang.")]
    theirs = [one for one in other.choices if one.key.startswith("inference.sglang.")]
    shared = replace(
        plan,
        config=replace(plan.config, inference=inference),
        choices=(*theirs, *mine),
        forecast=other.forecast,
        label=other.label,
        cause=other.cause,
        fix=other.fix,
        notes=(
            *plan.notes,
            "the engine starts as another point of the sweep asks, which needs more of it",
        ),
    )
    return Served(shared, start.engine_key)


def sweep_parent(points: Sequence[SweepPoint]) -> tuple[Path, str]:
    """Return where the sweep's own folder goes, and its name: those of the first point that was composed."""
    configs = [point.run.config for point in points if point.run is not None]
    if not configs:
        return Path("outputs"), "sweep"
    return Path(configs[0].paths.outputs).expanduser(), configs[0].name
