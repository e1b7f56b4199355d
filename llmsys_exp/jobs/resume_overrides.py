"""Overrides on top of the configuration of a run that goes on; those that change the training are refused."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.runs.resume_rules import fixed_settings, flat


def apply_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Return a configuration with Hydra overrides applied, groups included.

    Raises:
        UserError: for names and values that there are not.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from llmsys_exp.config.compose import to_config
    from llmsys_exp.config.groups import Groups

    if not overrides:
        return deepcopy(config)
    groups = Groups.shipped()
    tree = OmegaConf.structured(deepcopy(config))
    try:
        for one in OverridesParser.create().parse_overrides(list(overrides)):
            key, value = one.key_or_group, one.value()
            if one.is_sweep_override():
                raise UserError(f"{key} has several values", do="Give one; a run goes on once")
            if key in groups.names():
                tree = OmegaConf.merge(tree, {key: OmegaConf.load(_option(groups, key, str(value)))})
            else:
                _known(key)
                OmegaConf.update(tree, key, value)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([UserError(str(error).splitlines()[0])]) from error
    return _settled(config, to_config(tree))


def _settled(before: Config, after: Config) -> Config:
    """Keep what was chosen where `auto` asks for it again: a run has chosen once."""
    old, new = flat(to_plain(before)), to_plain(after)
    for key, value in flat(new).items():
        if value == AUTO:
            *sections, name = key.split(".")
            node = new
            for section in sections:
                node = node[section]
            node[name] = old[key]
    return from_plain(new)


def check_changes(before: Config, after: Config) -> None:
    """Refuse changes that would make the rest of the training another one, all of them at once.

    Raises:
        UserError: naming each with its old and its new value.
    """
    old, new = fixed_settings(before), fixed_settings(after)
    defaults = flat(to_plain(Config()))
    changed = []
    for key in sorted({*old, *new}):
        was, asked = old.get(key, defaults.get(key)), new.get(key, defaults.get(key))
        if asked != was:
            changed.append(f"{key} ({was} -> {asked})")
    if changed:
        raise UserError(
            f"These settings would make it another run: {', '.join(changed)}",
            where="resume=",
            do="Leave them out, or start a new run. Length, measuring, checkpoint.*, launcher.* and "
            "hardware.gpus_per_node may differ",
        )


def _option(groups: Any, group: str, name: str) -> Path:
    from llmsys_exp.errors import unknown_name

    file = groups.file(group, name)
    if file is None:
        raise unknown_name(f"option of {group}", name, groups.options(group), where=f"{group}={name}")
    return file


def _known(key: str) -> None:
    from llmsys_exp.config.tree import settings_tree

    tree = settings_tree()
    if not tree.knows(key):
        near = tree.nearest(key)
        raise UserError(
            f"{key} is not a setting", do=f"Did you mean {near}?" if near else "llmsys train --help"
        )
