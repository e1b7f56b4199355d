"""A sweep file: YAML that says which settings take which values.

    base:                              # what all points share
      experiment: sft_lora
    grid:                              # every combination; a list, or Hydra's grammar as a text
      zero.stage: [2, 3]
      training.micro_batch: range(1,9)
    zip:                               # in step: as many values each; a list of such mappings for several
      method.lora.r: [8, 16]
      method.lora.alpha: [16, 32]
    when:                              # further settings of the points that match
      - if: {method: lora}
        grid: {method.lora.dropout: [0.0, 0.1]}
    exclude:                           # points that match all of an entry; a list: any of its values
      - {zero.stage: 2, offload.param: cpu}
    points:                            # further points, as they are
      - {zero.stage: 0, training.micro_batch: 1}

`grid` and `zip` are combined with each other, and with what is swept on the command line. `points` come
after these and are combined with the command line only; `when` and `exclude` hold for all. A file with
`search` in the place of them is a search, see `search.asked`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from llmsys_exp.config.files import alias_problem
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.sweeps.points.settings import Setting, expand, keys_of, write
from llmsys_exp.sweeps.search.asked import SECTIONS as SEARCH_SECTIONS
from llmsys_exp.sweeps.search.asked import Search, read_search

SECTIONS = ("base", "grid", "zip", "when", "exclude", "points", *SEARCH_SECTIONS)
Step = tuple[Setting, ...]
"""Settings that one value of an axis gives: several where they go in step."""
Axis = list[Step]


@dataclass(frozen=True)
class Condition:
    """What a point must be like: each key one of its values."""

    wanted: tuple[tuple[Setting, ...], ...]


@dataclass(frozen=True)
class When:
    """Further axes of the points that match."""

    condition: Condition
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class SweepFile:
    """What a sweep file says, not yet combined."""

    name: str
    base: tuple[Setting, ...]
    axes: tuple[Axis, ...]
    points: tuple[Step, ...]
    when: tuple[When, ...]
    exclude: tuple[Condition, ...]
    search: Search | None = None

    def swept(self) -> list[Setting]:
        """Every setting that is not the same for all points."""
        axes = [*self.axes, *(axis for entry in self.when for axis in entry.axes)]
        found = [one for axis in axes for step in axis for one in step]
        found += [one for step in self.points for one in step]
        return found + ([] if self.search is None else self.search.settings(self.name))

    def everything(self) -> list[Setting]:
        """Every setting that the file names."""
        conditions = [*self.exclude, *(entry.condition for entry in self.when)]
        asked = [one for condition in conditions for values in condition.wanted for one in values]
        return [*self.base, *self.swept(), *asked]


def read_sweep_file(path: Path) -> SweepFile:
    """Read a sweep file.

    Raises:
        UserError: when it is no sweep file, with the section that is wrong.
    """
    return sweep_of(_load(path), path.name)


def sweep_of(content: Mapping[str, Any], name: str) -> SweepFile:
    """Read the sections of a sweep file.

    Args:
        content: section -> what it holds.
        name: of the file, for messages.

    Raises:
        UserError: with the section that is wrong.
    """
    unknown = [str(key) for key in content if key not in SECTIONS]
    if unknown:
        raise unknown_name("section of a sweep file", unknown[0], SECTIONS, where=name)
    zipped = content.get("zip")
    zipped = [] if zipped in (None, {}) else zipped if isinstance(zipped, list) else [zipped]
    axes = _grid(content.get("grid"), f"{name}, grid")
    axes += [_zip(one, f"{name}, zip") for one in zipped]
    found = SweepFile(
        name=name,
        base=_mapping(content.get("base") or {}, f"{name}, base"),
        axes=tuple(axes),
        points=tuple(_mapping(one, f"{name}, points") for one in _list(content, "points", name)),
        when=tuple(_when(one, f"{name}, when") for one in _list(content, "when", name)),
        exclude=tuple(_condition(one, f"{name}, exclude") for one in _list(content, "exclude", name)),
        search=read_search(content, name),
    )
    if found.search is not None:
        _check_when(found)
    elif not (found.axes or found.points):
        raise UserError("Nothing is swept", where=name, do="Give grid, zip or points")
    for entry in [None, *found.when]:
        more = [] if entry is None else list(entry.axes)
        refuse_repeated([*found.axes, *more], name)
    return found


def _check_when(found: SweepFile) -> None:
    """Refuse what would make several points of one suggestion, or give a searched setting another value."""
    assert found.search is not None
    searched = {dimension.key for dimension in found.search.space}
    for axis in (axis for entry in found.when for axis in entry.axes):
        for key in sorted(keys_of(axis[0])):
            where = f"{found.name}, when"
            if len(axis) > 1:
                why = "A search takes one value of what depends on others"
                raise UserError(f"{key} has {len(axis)} values", where=where, why=why, do="Give it one")
            if key in searched:
                raise UserError(f"{key} is searched, too", where=where, do="Leave one of them out")


def refuse_repeated(axes: Iterable[Axis], where: str) -> None:
    """Refuse a setting that two axes give.

    Raises:
        ConfigError: naming it.
    """
    seen: set[str] = set()
    for axis in axes:
        keys = keys_of(one for step in axis for one in step)
        for key in sorted(keys & seen):
            problem = UserError(f"{key} is swept twice", where=where, do="Give all its values once")
            raise ConfigError([problem])
        seen |= keys


def _load(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        aliases = alias_problem(text, path.name, "a sweep file")
        if aliases:
            raise aliases[0]
        content = yaml.load(text, Loader=get_yaml_loader())  # a SafeLoader that refuses repeated keys
    except OSError as error:
        raise UserError(f"{path} cannot be read", why=error.strerror or "") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text", do="Save it as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = path.name if mark is None else f"{path.name}, line {mark.line + 1}"
        what = getattr(error, "problem", None) or type(error).__name__
        do = "Mend the line, or the one above it"
        raise UserError(f"Broken YAML: {what}", where=where, do=do) from error
    if not isinstance(content, Mapping) or not content:
        raise UserError(
            f"{path.name} is no sweep file", why="It holds no mapping", do=f"Sections: {', '.join(SECTIONS)}"
        )
    return content


def _list(content: Mapping[str, Any], section: str, name: str) -> Sequence[Any]:
    given = content.get(section)
    if given is None and section not in content:
        return ()
    if not isinstance(given, list) or (section == "points" and not given):
        raise UserError(f"{section} takes a list of mappings, not {given!r}", where=name)
    return given


def _mapping(given: Any, where: str) -> Step:
    if not isinstance(given, Mapping):
        raise UserError(f"Settings go as key: value, not {given!r}", where=where)
    return tuple(write(str(key), value, where=f"{where}: {key}") for key, value in given.items())


def _grid(given: Any, where: str) -> list[Axis]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise UserError(f"grid takes a mapping of settings to lists, not {given!r}", where=where)
    return [[(one,) for one in _values(str(key), values, where)] for key, values in given.items()]


def _values(key: str, given: Any, where: str) -> list[Setting]:
    """A list, one value, or a text in Hydra's sweep grammar."""
    where = f"{where}: {key}"
    if isinstance(given, str):
        return expand(f"{key}={given}", where=where)
    values = given if isinstance(given, list) else [given]
    if not values:
        raise UserError(f"{key} has no values", where=where, do="Give it at least one")
    return [write(key, value, where=where) for value in values]


def _zip(given: Any, where: str) -> Axis:
    if not isinstance(given, Mapping) or not given:
        raise UserError(f"zip takes a mapping of settings to lists, not {given!r}", where=where)
    columns = [_values(str(key), values, where) for key, values in given.items()]
    lengths = {str(key): len(column) for key, column in zip(given, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise UserError(f"zip needs as many values of each setting: {told}", where=where)
    return list(zip(*columns, strict=True))


def _when(given: Any, where: str) -> When:
    if not isinstance(given, Mapping) or set(given) != {"if", "grid"}:
        raise UserError(f"An entry of when is {{if: {{...}}, grid: {{...}}}}, not {given!r}", where=where)
    return When(_condition(given["if"], f"{where}: if"), tuple(_grid(given["grid"], f"{where}: grid")))


def _condition(given: Any, where: str) -> Condition:
    if not isinstance(given, Mapping) or not given:
        raise UserError(f"A condition is a mapping of settings to values, not {given!r}", where=where)
    return Condition(
        tuple(
            tuple(
                write(str(key), value, where=f"{where}: {key}")
                for value in (values if isinstance(values, list) else [values])
            )
            for key, values in given.items()
        )
    )
