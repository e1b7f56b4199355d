"""Today's plan against the choices of then, which are taken over: this says where it differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import AUTO, Config, Step
from llmsys_exp.errors import UserError
from llmsys_exp.plan import resolve
from llmsys_exp.plan.unknown import is_unknown_model
from llmsys_exp.reproduce.drift import FORECAST, Drift, Effect, short
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.runs.resume_rules import flat

_ELSEWHERE = ("paths", "launcher.name")
"""Where a run was started decides these."""
FORECAST_DIGITS = 1e-9


def plan_drifts(logged: Logged, config: Config, *, as_recorded: bool) -> Iterator[Drift]:
    """Yield where a plan made today would differ, and where defaults or shipped settings have changed.

    Args:
        logged: the run.
        config: what is run: the settings of then.
        as_recorded: whether the command line changes none of them.
    """
    if as_recorded:
        yield from _forecast(logged, config)
    composed = _composed(logged)
    if composed is not None:
        yield from _defaults(logged, composed)
        yield from _choices(logged, composed)


def _forecast(logged: Logged, config: Config) -> Iterator[Drift]:
    """The forecast of the same settings comes from the planner's code alone."""
    was = logged.section("forecast").get("peak_allocated_gib")
    if not isinstance(was, float) or Step.train not in config.steps or is_unknown_model(config):
        return
    try:
        now = resolve(config).known[0].to_dict().get("peak_allocated_gib")
    except UserError as error:
        yield Drift("plan", "forecast", f"the settings cannot be planned today: {error}", Effect.NOTHING)
        return
    if isinstance(now, float) and abs(now - was) > FORECAST_DIGITS * abs(was):
        what = f"the same settings are forecast to need {now:.3f} GiB; the forecast was {was:.3f} GiB"
        yield Drift("plan", "forecast", what, Effect.NOTHING, (FORECAST,), was, now)


def _composed(logged: Logged) -> Config | None:
    """What the command line of then comes to today; None where it cannot be composed by itself."""
    overrides = [text for text in logged.manifest.get("overrides") or () if isinstance(text, str)]
    # these add to the settings of another run
    if any(text.startswith(("run=", "resume=")) for text in (*overrides, *logged.manifest["command"])):
        return None
    if any("${" in text for text in overrides):
        return None
    return _compose(tuple(overrides))


@lru_cache(maxsize=16)
def _compose(overrides: tuple[str, ...]) -> Config | None:
    """Compose a command line; points of a sweep and runs that were done again share theirs."""
    try:
        return compose_config(overrides)
    except UserError:
        return None


def _defaults(logged: Logged, composed: Config) -> Iterator[Drift]:
    chosen = {one.key for one in logged.choices if not one.given}
    if logged.only_answers:
        chosen.add("steps")  # the verb has said that
    told, today = flat(logged.config), flat(to_plain(composed))
    for key in sorted(told.keys() & today.keys()):
        was, now = told[key], today[key]
        if now in (was, AUTO) or key in chosen or _is_elsewhere(key) or _is_settled_path(was, now):
            continue
        what = f"the same command gives {key}={short(now)} today; the run's {short(was)} is taken over"
        yield Drift("plan", key, what, Effect.NOTHING, (), was, now)


def _choices(logged: Logged, composed: Config) -> Iterator[Drift]:
    if Step.train not in composed.steps or not logged.choices or is_unknown_model(composed):
        return
    try:
        today = {one.key: one.value for one in resolve(composed).choices if not one.given}
    except UserError as error:
        what = f"the settings of then are run; the same command cannot be planned today: {error}"
        yield Drift("plan", "choices", what, Effect.NOTHING)
        return
    for one in logged.choices:
        if one.given or one.key not in today or today[one.key] == one.value or _is_elsewhere(one.key):
            continue
        what = f"a plan of today chooses {one.key}={today[one.key]}; the run's {one.value} is taken over"
        yield Drift("plan", one.key, what, Effect.NOTHING, (), one.value, today[one.key])


def _is_elsewhere(key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in _ELSEWHERE)


def _is_settled_path(was: Any, now: Any) -> bool:
    """A relative path was made absolute in the record, and a text may be filled in by what it names."""
    if isinstance(was, Mapping) or now is None or was is None:
        return now is None
    return (
        isinstance(was, str)
        and isinstance(now, str)
        and was.startswith("/")
        and was.endswith(now.lstrip("./"))
    )
