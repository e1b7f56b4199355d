"""Configurations of many points: Hydra composes once for each choice of groups, single settings are put in.

What Hydra would make of a point, in microseconds instead of tenths of a second: in this program's `conf/` no
value is computed from another, and where somebody's is, every point is composed by Hydra.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from omegaconf import OmegaConf

from llmsys_exp.config.compose import MissingValuesError, compose_tree, to_config
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.config.tree import settings_tree, value_at
from llmsys_exp.errors import ConfigError
from llmsys_exp.sweeps.points.settings import Setting

KEY_DIGITS = 16


@dataclass(frozen=True)
class Tree:
    """What Hydra made of a choice of groups, before single settings are put in."""

    config: Config
    plain: dict[str, Any]
    entries: dict[str, bytes]
    """Each top-level entry but `paths` as `config_hash` reads it, name and value in JSON; sorted."""
    choices: dict[str, str]
    params: dict[str, Any]
    """`hydra.sweeper.params` of an experiment."""
    computed: bool
    """Whether a value is computed from another."""


@dataclass(frozen=True)
class Resolved:
    """One point's configuration, not yet built."""

    tree: Tree
    settings: tuple[Setting, ...]

    def config(self) -> Config:
        """Build it."""
        config = copy.copy(self.tree.config)
        fresh: set[str] = set()
        for setting in self.settings:
            node, at = config, ""
            *sections, leaf = setting.key.split(".")
            for name in sections:
                at = f"{at}.{name}"
                if at not in fresh:
                    setattr(node, name, copy.copy(getattr(node, name)))
                    fresh.add(at)
                node = getattr(node, name)
            value = typed(setting)
            setattr(node, leaf, list(value) if isinstance(value, list) else value)
        return config

    def value(self, key: str) -> Any:
        """Return the plain value of a setting, or the option of a group."""
        for setting in reversed(self.settings):
            if setting.key == key:
                return to_plain(typed(setting))
        if key in settings_tree().leaves:
            return to_plain(value_at(self.tree.config, key))
        return self.tree.choices.get(key)


class Composer:
    """Composes points that share a list of overrides."""

    def __init__(self, base: Sequence[str]) -> None:
        self._base = tuple(base)
        self._trees: dict[tuple[str, ...], Tree] = {}
        self._entries: dict[int, dict[str, bytes]] = {}
        self._missing: dict[tuple[str, ...], tuple[str, ...]] = {}

    def resolve(self, settings: Sequence[Setting]) -> Resolved:
        """Return a point's configuration; later settings win, as on a command line.

        Raises:
            ConfigError: naming every problem that Hydra or the schema has with it.
        """
        groups = tuple([one.text for one in settings if not one.is_leaf])
        missing = self._missing.get(groups, ())
        composed = [one.text for one in settings if not one.is_leaf or one.key in missing]
        try:
            tree = self._tree(tuple(composed))
        except MissingValuesError as error:
            if missing or not any(one.key in error.keys for one in settings):
                raise
            self._missing[groups] = error.keys  # what the group leaves open is for Hydra to put in
            return self.resolve(settings)
        if tree.computed:
            return Resolved(self._tree(tuple([one.text for one in settings])), ())
        return Resolved(tree, tuple([one for one in settings if one.is_leaf and one.key not in missing]))

    def key(self, resolved: Resolved) -> str:
        """Return the hash of a configuration; `config_hash` of it is how it begins."""
        tree, touched = resolved.tree, {}
        for setting in resolved.settings:
            before = touched.get(setting.section)
            touched[setting.section] = setting.text if before is None else f"{before} {setting.text}"
        known = self._entries.setdefault(id(tree), {})
        entries = tree.entries.copy()
        for name, texts in touched.items():
            if name not in entries:
                continue
            if texts not in known:
                own = [setting for setting in resolved.settings if setting.section == name]
                known[texts] = _entry(name, _changed(tree.plain, own)[name])
            entries[name] = known[texts]
        return hashlib.sha256(b"{%b}" % b", ".join(entries.values())).hexdigest()[:KEY_DIGITS]

    def _tree(self, groups: tuple[str, ...]) -> Tree:
        if groups not in self._trees:
            self._trees[groups] = _compose((*self._base, *groups))
        return self._trees[groups]


def check_setting(setting: Setting) -> None:
    """Check one override on its own.

    Raises:
        ConfigError: when its key or value is none.
    """
    if setting.is_leaf:
        typed(setting)
        return
    from llmsys_exp.config.groups import Groups
    from llmsys_exp.config.problems import override_problems

    problems = override_problems([setting.text], Groups.shipped())
    if problems:
        there = f"from the command line: {setting.text}"
        where = setting.where or there
        raise ConfigError([str(problem).replace(there, where) for problem in problems])


def typed(setting: Setting) -> Any:
    """Return the value of a single setting as the schema has it.

    Raises:
        ConfigError: when the setting does not take it.
    """
    hint, value = settings_tree().leaves[setting.key], setting.value
    if type(value) is hint and not isinstance(value, str):
        return value
    if hint is float and type(value) is int:
        return float(value)
    return _typed(setting.key, setting.text, _Held(value), setting.where)


@dataclass(frozen=True, eq=False)
class _Held:
    """A value that may be a list, so that it can be an argument of something cached by the text beside it."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=65_536)
def _typed(key: str, text: str, held: _Held, where: str) -> Any:
    """Have OmegaConf convert a value, as it does when Hydra merges it."""
    from llmsys_exp.config.problems import typed_value, value_problem

    problem = value_problem(key, held.value, where=where)
    if problem is not None:
        raise ConfigError([problem])
    hint = settings_tree().leaves[key]
    if isinstance(hint, type) and issubclass(hint, Enum) and held.value in hint.__members__:
        return hint[held.value]
    if held.value is None or settings_tree().takes_auto(key):
        return held.value
    return typed_value(key, held.value)


@lru_cache(maxsize=128)
def _compose(overrides: tuple[str, ...]) -> Tree:
    """Points and gate ask for the same trees, which nobody changes."""
    tree = compose_tree(overrides)
    hydra = tree.hydra
    choices = {str(key): str(value) for key, value in hydra.runtime.choices.items() if value is not None}
    params = OmegaConf.to_container(hydra.sweeper).get("params") or {}
    OmegaConf.set_struct(tree, False)
    tree.pop("hydra", None)
    computed = "${" in str(OmegaConf.to_container(tree))
    config = to_config(tree)
    plain = to_plain(config)
    entries = {name: _entry(name, value) for name, value in sorted(plain.items()) if name != "paths"}
    return Tree(config, plain, entries, choices, dict(params), computed)


def _changed(plain: dict[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """Return plain values with settings put in; what does not change is shared."""
    root = dict(plain)
    for setting in settings:
        node = root
        *sections, leaf = setting.key.split(".")
        for name in sections:
            node[name] = dict(node[name])
            node = node[name]
        node[leaf] = to_plain(typed(setting))
    return root


def _entry(name: str, value: Any) -> bytes:
    """As `config_hash` writes it."""
    return f'"{name}": {json.dumps(value, sort_keys=True, default=str)}'.encode()
