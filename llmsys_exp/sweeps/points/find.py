"""The points of a sweep, from the command line and a sweep file; every configuration once.

On the command line the grammar is Hydra's: `a=1,2`, `b=range(1,4)`, `c=choice(...)`, and an experiment's
`hydra.sweeper.params` hold unless a sweep file is given. What a file takes: `sweep_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path

from llmsys_exp.config.plain import to_plain
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.sweeps.points.composing import Composer, Resolved, check_setting, typed
from llmsys_exp.sweeps.points.point import Point, Points
from llmsys_exp.sweeps.points.settings import MOST_POINTS, Setting, expand, keys_of
from llmsys_exp.sweeps.points.sweep_file import (
    Axis,
    Condition,
    Step,
    SweepFile,
    When,
    read_sweep_file,
    refuse_repeated,
)

VERBS = ("train", "infer")
COMMAND_LINE = "the command line"


def points_of(base: Sequence[str], swept: Sequence[str], file: Path | None, verb: str) -> Points:
    """Return the points of a sweep, each configuration once.

    Args:
        base: overrides; those of several values are swept.
        swept: further ones.
        file: a sweep file.
        verb: what runs a point.

    Raises:
        UserError: for an empty sweep, a key that does not exist and a value that a setting does not take.
    """
    if verb not in VERBS:
        raise unknown_name("verb of a sweep", verb, VERBS)
    read = None if file is None else read_sweep_file(file)
    if read is not None and read.search is not None:
        raise UserError("The points of a search are not known before it runs", where=read.name)
    fixed, axes = _command_line([*base, *swept])
    shared = _shared(fixed, axes, read)
    composer = Composer([one.text for one in shared])
    if read is None:
        axes += _params(composer, fixed, axes)
    _check(fixed, axes, read)
    points = _Collected(composer)
    for settings in _combined(axes, read):
        for expanded in _expand(composer, settings, () if read is None else read.when):
            points.add(expanded, () if read is None else read.exclude)
    return points.finished(tuple(one.text for one in shared), "" if read is None else read.name)


def search_base(texts: Sequence[str], read: SweepFile) -> tuple[str, ...]:
    """Return the overrides that all points of a search share.

    Args:
        texts: overrides of the command line.
        read: the file of the search.

    Raises:
        UserError: for a key that does not exist, a value that a setting does not take, and several values.
    """
    fixed, axes = _command_line(texts)
    if axes:
        key = axes[0][0][0].key
        why = "The settings of a search are those of its file"
        raise UserError(
            f"{key} has several values", where=COMMAND_LINE, why=why, do=f"Search it in {read.name}"
        )
    _check(fixed, [], read)
    return tuple(one.text for one in _shared(fixed, [], read))


def expand_search(composer: Composer, settings: Step, read: SweepFile) -> Step:
    """Give a suggestion the further settings that `when` says."""
    (found,) = _expand(composer, settings, read.when)
    return found


def is_excluded(resolved: Resolved, conditions: Sequence[Condition]) -> bool:
    """Whether one of some exclusions matches a point."""
    return any(_matches(condition, resolved.value) for condition in conditions)


class _Collected:
    """Points as they come: those that an exclusion matches and those that were there are left out."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._points: dict[str, Point] = {}
        self._resolved: list[Resolved] = []
        self._dropped = self._excluded = 0

    def add(self, settings: Step, exclude: Sequence[Condition]) -> None:
        resolved = self._composer.resolve(settings)
        if is_excluded(resolved, exclude):
            self._excluded += 1
            return
        key = self._composer.key(resolved)
        if key in self._points:
            self._dropped += 1
            return
        texts = tuple([one.text for one in settings])
        self._resolved.append(resolved)
        self._points[key] = Point(len(self._points) + 1, key, texts)

    def finished(self, base: tuple[str, ...], where: str) -> Points:
        if not self._points:
            raise UserError(f"All {self._excluded} points are excluded", where=f"{where}, exclude")
        return Points(tuple(self._points.values()), self._dropped, base, tuple(self._resolved))


def _command_line(texts: Sequence[str]) -> tuple[list[Setting], list[Axis]]:
    """Overrides of one value, and those of several."""
    expanded = [expand(text) for text in texts]
    fixed = [found[0] for found in expanded if len(found) == 1]
    axes: list[Axis] = [[(one,) for one in found] for found in expanded if len(found) > 1]
    refuse_repeated(axes, COMMAND_LINE)
    for key in sorted(keys_of(fixed) & keys_of(found[0] for found in expanded if len(found) > 1)):
        raise ConfigError(
            [UserError(f"{key} is both fixed and swept", where=COMMAND_LINE, do="Leave one of them out")]
        )
    return fixed, axes


def _params(composer: Composer, fixed: Sequence[Setting], axes: Sequence[Axis]) -> list[Axis]:
    """What an experiment sweeps by itself, unless the command line names the same setting."""
    firsts = [one for axis in axes for one in axis[0]]
    for setting in (*fixed, *firsts):
        check_setting(setting)
    tree = composer.resolve(firsts).tree
    named = keys_of([*fixed, *firsts])
    found = [
        expand(f"{key}={value}", where=f"hydra.sweeper.params: {key}")
        for key, value in tree.params.items()
        if key.lstrip("+~") not in named
    ]
    if not (axes or any(len(values) > 1 for values in found)):
        raise UserError(
            "Nothing is swept",
            where=COMMAND_LINE,
            do="Give a setting several values: KEY=A,B or KEY=range(1,4)",
        )
    return [[(one,) for one in values] for values in found]


def _check(fixed: Sequence[Setting], axes: Sequence[Axis], read: SweepFile | None) -> None:
    """Check every key and value before anything is composed; all problems are told at once."""
    problems: list[str] = []
    given = [*fixed, *(one for axis in axes for step in axis for one in step)]
    in_file = [] if read is None else read.everything()
    if "resume" in keys_of((*given, *in_file)):
        why = "Every point is a run of its own"
        raise UserError(
            "resume does not go with a sweep", why=why, do="`llmsys train resume=RUN` goes on with one"
        )
    for setting in (*given, *in_file):
        try:
            check_setting(setting)
        except ConfigError as error:
            problems += error.problems
    if read is not None:
        for key in sorted(keys_of(given) & keys_of(read.swept())):
            problems.append(f"{key} is on the command line and swept in {read.name}.  Leave one of them out.")
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _shared(fixed: list[Setting], axes: Sequence[Axis], read: SweepFile | None) -> list[Setting]:
    """Overrides of all points: the file's that the command line does not name, then the command line's."""
    if read is None:
        return fixed
    named = keys_of([*fixed, *(one for axis in axes for step in axis for one in step)])
    return [one for one in read.base if one.key.lstrip("+~") not in named] + fixed


def _combined(axes: list[Axis], read: SweepFile | None) -> Iterator[Step]:
    """Every combination, the last axis fastest; then the file's own points."""
    grid = [*([] if read is None else read.axes), *axes]
    listed: list[Axis] = [] if read is None or not read.points else [list(read.points), *axes]
    count = sum(prod(len(axis) for axis in one) for one in (grid, listed) if one)
    if count > MOST_POINTS:
        raise UserError(f"The sweep has {count:,} points", why=f"No more than {MOST_POINTS:,} are planned")
    if read is None or read.axes:
        yield from _joined(grid)
    if listed:
        yield from _joined(listed)


def _joined(axes: Sequence[Axis]) -> Iterator[Step]:
    for steps in product(*axes):
        yield tuple(one for step in steps for one in step)


def _expand(composer: Composer, settings: Step, entries: Sequence[When]) -> Iterator[Step]:
    """Give a point the further settings of the entries that it matches."""
    found = [settings]
    for entry in entries:
        found = [
            wider
            for one in found
            for wider in (
                ((*one, *more) for more in _joined(entry.axes))
                if _matches(entry.condition, _told(entry.condition, composer, one))
                else (one,)
            )
        ]
    yield from found


def _told(condition: Condition, composer: Composer, settings: Step) -> Callable[[str], object]:
    """Return what tells the values of a point; nothing is composed where its settings say them."""
    given = {one.key: one for one in settings if one.is_leaf}
    if all(one.key in given for values in condition.wanted for one in values):
        return lambda key: to_plain(typed(given[key]))
    return composer.resolve(settings).value


def _matches(condition: Condition, value: Callable[[str], object]) -> bool:
    return all(any(value(one.key) == _wanted(one) for one in values) for values in condition.wanted)


def _wanted(setting: Setting) -> object:
    return to_plain(typed(setting)) if setting.is_leaf else str(setting.value)
