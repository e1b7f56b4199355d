"""Find out what is wrong with a configuration that did not compose, and say all of it at once.

Runs after a failure only: a configuration that composes against the schema has no such problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llmsys_exp.config.experiment_path import GROUP as EXPERIMENT
from llmsys_exp.config.experiment_path import SUFFIX
from llmsys_exp.config.groups import Groups
from llmsys_exp.config.schema import Config
from llmsys_exp.config.tree import settings_tree
from llmsys_exp.errors import UserError, closest, unknown_name


def override_problems(overrides: Sequence[str], groups: Groups) -> list[UserError]:
    """Check each override on its own against the groups and the schema."""
    return [problem for text in overrides for problem in _check_override(text, groups)]


def unknown_key(key: str, groups: Groups, *, where: str) -> UserError:
    """Describe a key that is no setting and no group."""
    tree = settings_tree()
    section = key.rpartition(".")[0]
    near = tree.nearest(key)
    if not section and "." not in near:
        near = closest(key, [*groups.names(), *tree.children("")]) or near
    hint = f"Did you mean {near}?" if near else ""
    if section in tree.sections:
        listing = f"Settings under {section}: {', '.join(tree.children(section))}"
    else:
        listing = "" if near else f"Groups: {', '.join(groups.names())}"
    return UserError(
        f"{key} is not a setting", where=where, do="  ".join(part for part in (hint, listing) if part)
    )


def unknown_option(group: str, option: str, groups: Groups, *, where: str) -> UserError:
    """Describe an option that a group does not have."""
    return unknown_name(f"option of {group}", option, groups.options(group), where=where, limit=30)


def value_problem(key: str, value: Any, *, where: str) -> UserError | None:
    """Check one value against the type of its setting."""
    tree = settings_tree()
    if key not in tree.leaves or (isinstance(value, str) and "${" in value):
        return None
    if not (isinstance(value, str) and tree.takes_auto(key)):
        try:
            _put(key, value)
            return None
        except OmegaConfBaseException:
            pass
    elif value in tree.words(key):
        return None
    return _bad_value(key, value, where)


def typed_value(key: str, value: Any) -> Any:
    """Return a value of a setting as OmegaConf converts it; it has to take it."""
    tree, name = _put(key, value)
    node = OmegaConf.select(tree, name)
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node


def _put(key: str, value: Any) -> tuple[DictConfig, str]:
    """Put a value into a tree that nobody reads; return the tree and where it is in it."""
    section, _, rest = key.partition(".")
    tree, name = (_section(section), rest) if rest else (_root(), key)
    OmegaConf.update(tree, name, value)
    return tree, name


@lru_cache(maxsize=1)
def _root() -> DictConfig:
    return OmegaConf.structured(Config)


@lru_cache(maxsize=64)
def _section(name: str) -> DictConfig:
    """One section to try values on: the whole tree takes as long as a quarter of a composition."""
    hint = get_type_hints(Config)[name]
    return OmegaConf.structured(hint) if is_dataclass(hint) else _root()[name]


def _bad_value(key: str, value: Any, where: str) -> UserError:
    expects = settings_tree().expects(key)
    near = (
        closest(str(value), expects.removeprefix("one of ").split(", "))
        if expects.startswith("one of")
        else ""
    )
    hint = f"Did you mean {near}?  " if near else ""
    return UserError(f"{key} cannot be {value!r}", where=where, do=f"{hint}It takes {expects}")


def _check_override(text: str, groups: Groups) -> list[UserError]:
    where = f"from the command line: {text}"
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        return [_unreadable(text, groups, str(error))]
    key = override.key_or_group
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        return []
    if key in groups.names():
        return _check_group(override, groups, where)
    if override.package is not None or "/" in key:
        near = closest(key.replace("/", "."), [*groups.names(), *settings_tree().leaves])
        return [UserError(f"{key} is not a group", where=where, do=f"Did you mean {near}?" if near else "")]
    return _check_setting(override, groups, where)


def _check_setting(override: Override, groups: Groups, where: str) -> list[UserError]:
    key, tree = override.key_or_group, settings_tree()
    if not tree.knows(key):
        return [unknown_key(key, groups, where=where)]
    if override.is_delete():
        return [UserError(f"{key} cannot be removed", where=where, do="Set it to another value, or to null")]
    if key in tree.sections:
        return _check_section(key, _values(override), groups, where)
    problems = (value_problem(key, value, where=where) for value in _values(override))
    return [problem for problem in problems if problem is not None]


def _check_section(key: str, values: list[Any], groups: Groups, where: str) -> list[UserError]:
    if all(isinstance(value, dict) for value in values):
        return _check_mapping(key, values, groups, where)
    do = f"Set one of: {', '.join(f'{key}.{name}' for name in settings_tree().children(key))}"
    return [UserError(f"{key} is a section, not a setting", where=where, do=do)]


def _check_mapping(section: str, values: list[dict[str, Any]], groups: Groups, where: str) -> list[UserError]:
    problems: list[UserError | None] = []
    for name, value in (item for mapping in values for item in mapping.items()):
        key = f"{section}.{name}"
        known = settings_tree().knows(key)
        problems.append(
            value_problem(key, value, where=where) if known else unknown_key(key, groups, where=where)
        )
    return [problem for problem in problems if problem is not None]


def _check_group(override: Override, groups: Groups, where: str) -> list[UserError]:
    group = override.key_or_group
    if override.is_delete():
        return []
    if override.is_add():
        fixed = (override.input_line or "").lstrip("+")
        return [
            UserError(f"{group} is in the configuration already", where=where, do=f"Write {fixed} without +")
        ]
    chosen = _values(override)
    if None in chosen:
        return [
            UserError(f"{group} cannot be null", where=where, do=f"To leave the group out write ~{group}")
        ]
    if any(isinstance(value, dict) for value in chosen):
        return _check_mapping(group, [value for value in chosen if isinstance(value, dict)], groups, where)
    flat = [item for value in chosen for item in (value if isinstance(value, list) else [value])]
    known = groups.options(group)
    return [
        _wrong_option(group, str(option), groups, where)
        for option in flat
        if str(option).removesuffix(".yaml") not in known and groups.file(group, str(option)) is None
    ]


def _wrong_option(group: str, option: str, groups: Groups, where: str) -> UserError:
    problem = unknown_option(group, option, groups, where=where)
    same_name = [
        name for name in settings_tree().children(group) if name in ("stage", "kind", "policy", "gpu")
    ]
    near = closest(option, groups.options(group))
    if group == EXPERIMENT and option.endswith(SUFFIX) and Path(option).is_file():
        return UserError(problem.what, where=where, do=f"For the file write {group}=./{option}")
    if near or not same_name:
        return problem
    return UserError(
        problem.what, where=where, do=f"{problem.do}.  For one value write {group}.{same_name[0]}={option}"
    )


def _unreadable(text: str, groups: Groups, reason: str) -> UserError:
    if "=" not in text:
        owners = [group for group in groups.names() if text in groups.options(group)]
        owners.sort(key=lambda group: group != "experiment")
        do = f"Did you mean {owners[0]}={text}?" if owners else "Write settings as key=value"
        return UserError(f"{text!r} is not a setting", where="from the command line", do=do)
    return UserError(
        f"Cannot read {text!r}",
        where="from the command line",
        why=reason.splitlines()[0],
        do="Quote values that hold spaces, commas, brackets or = signs:  'key=\"a, b\"'",
    )


def _values(override: Override) -> list[Any]:
    if override.is_delete():
        return []
    if override.is_sweep_override():
        return [_plain(item) for item in override.sweep_iterator()] if override.is_discrete_sweep() else []
    return [override.value()]


def _plain(value: Any) -> Any:
    return getattr(value, "text", value)
