"""The points of `llmsys infer -m`: Hydra's grid, or each swept setting on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from llmsys_exp.cli.hydra_verb import Point, Request, make_request, parse_flags, run_verb
from llmsys_exp.cli.options import Options
from llmsys_exp.config.schema import Step
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.jobs.infer_sweep import SweepPoint
from llmsys_exp.jobs.job import Run

ONE_AT_A_TIME = "--one-at-a-time"
MULTIRUN = ("-m", "--multirun")


def hydra_points(arguments: Sequence[str]) -> list[SweepPoint]:
    """Have Hydra compose every point of a sweep, and start none yet.

    Raises:
        UserError: where the sweep itself cannot be read; what is wrong with one point stays with it.
    """
    asked: list[Request] = []
    points: list[SweepPoint] = []

    def collect(request: Request) -> int:
        asked.append(request)
        return 0

    def end(point: Point, number: int) -> None:
        run = as_run(asked.pop()) if point.error is None else None
        points.append(SweepPoint(number, point.overrides, run, point.error))

    run_verb("infer", list(arguments), collect, end)
    return points


def own_points(
    arguments: Sequence[str], options: Options, *, one_at_a_time: bool, compose: Callable[..., Run] | None
) -> list[SweepPoint]:
    """Compose the points of a sweep that is not Hydra's own grid.

    Args:
        arguments: overrides and `-m`.
        options: our own flags.
        one_at_a_time: vary each setting with the others at the first of their values; else every combination.
        compose: from overrides to a run. None: Hydra does, with an experiment's `hydra.sweeper.params`.
    """
    flags = parse_flags(arguments, "infer")
    _only_multirun(arguments)
    _check(flags.overrides)
    if compose is None:
        lists = _with_params(flags.overrides, options)

        def compose(overrides: Sequence[str]) -> Run:
            return _composed(overrides, options)

    else:
        lists = values_of(flags.overrides)
    points: list[SweepPoint] = []
    for number, overrides in enumerate(combinations(lists, one_at_a_time=one_at_a_time), start=1):
        try:
            points.append(SweepPoint(number, overrides, compose(overrides)))
        except UserError as error:
            points.append(SweepPoint(number, overrides, None, error))
    return points


def combinations(lists: Sequence[Sequence[str]], *, one_at_a_time: bool) -> list[tuple[str, ...]]:
    """Return the points that lists of values stand for.

    >>> combinations([["a=1", "a=2"], ["b=3", "b=4"]], one_at_a_time=True)
    [('a=1', 'b=3'), ('a=2', 'b=3'), ('a=1', 'b=4')]
    """
    if not one_at_a_time:
        return list(product(*lists))
    first = tuple(values[0] for values in lists)
    others = [
        (*first[:place], value, *first[place + 1 :])
        for place, values in enumerate(lists)
        for value in values[1:]
    ]
    return [first, *others]


def values_of(overrides: Sequence[str]) -> list[list[str]]:
    """Return for each override its values as overrides of their own, as Hydra's own sweeper takes them.

    Raises:
        UserError: for a sweep without an end, such as `interval(0,1)`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError([UserError(str(error).splitlines()[0])]) from error
    lists: list[list[str]] = []
    for one in parsed:
        key = one.get_key_element()
        if not one.is_sweep_override():
            lists.append([one.input_line or key])
        elif one.is_discrete_sweep():
            lists.append([f"{key}={value}" for value in one.sweep_string_iterator()])
        else:
            raise UserError(f"{one.input_line} has no list of values", do="Write KEY=A,B,C or KEY=range(1,4)")
    return lists


def as_run(request: Request) -> Run:
    """Return what a request asks for."""
    return Run(
        config=request.config,
        steps=[Step.infer],
        command=("llmsys", request.verb, *request.overrides),
        overrides=request.overrides,
        hydra_files=request.hydra_files,
        verbose=request.options.verbose,
    )


def _composed(overrides: Sequence[str], options: Options) -> Run:
    from llmsys_exp.config.compose import compose_tree

    return as_run(make_request("infer", compose_tree(list(overrides)), options, in_sweep=True))


def _with_params(overrides: Sequence[str], options: Options) -> list[list[str]]:
    """Add `hydra.sweeper.params` of the experiment, unless the command line names the same setting."""
    from llmsys_exp.config.compose import compose_tree

    given = values_of(overrides)
    tree = compose_tree([values[0] for values in given])
    params: Mapping[str, Any] = tree.hydra.sweeper.get("params") or {}
    named = {values[0].partition("=")[0].lstrip("+") for values in given}
    more = [f"{key}={value}" for key, value in params.items() if key.lstrip("+") not in named]
    return [*given, *values_of(more)]


def _check(overrides: Sequence[str]) -> None:
    from llmsys_exp.config.compose import find_problems

    problems = find_problems(list(overrides))
    if problems:
        raise ConfigError(problems)


def _only_multirun(arguments: Sequence[str]) -> None:
    others = [text for text in arguments if text.startswith("-") and text not in MULTIRUN]
    if others:
        raise UserError(
            f"{others[0]} goes neither with {ONE_AT_A_TIME} nor with run=",
            where="llmsys infer",
            do="Leave it out; -m alone takes all of Hydra's flags",
        )
