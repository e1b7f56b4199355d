"""Overrides on top of the configuration of a run that goes on; those that change the training are refused."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.runs.resume_rules import MAY_CHANGE, changes, fixed_settings, flat

GLOBAL = ("experiment", "debug")
"""Groups whose options are laid over the whole configuration."""
_MAY = {
    True: "Length, measuring, checkpoint.*, launcher.* and hardware.gpus_per_node",
    False: "How the engine is started and what it gets at a time",
}
"""What to say of the settings that a training run, and those that an inference run may change."""


def apply_overrides(config: Config, overrides: Sequence[str], *, reopens: bool = False) -> Config:
    """Return a configuration with Hydra overrides applied, groups included.

    Args:
        config: what a run was composed to; left as it is.
        overrides: `key=value` and `group=option` texts.
        reopens: take `auto` for an open setting. Else it stands for what was chosen: a run has chosen once.

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
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        # as Hydra does, wherever they stand: what is laid over all, then groups, then single settings
        names = groups.names()
        parsed.sort(
            key=lambda one: 0 if one.key_or_group in GLOBAL else 1 if one.key_or_group in names else 2
        )
        for one in parsed:
            key, value = one.key_or_group, one.value()
            if one.is_sweep_override():
                raise UserError(
                    f"{key} has several values",
                    do="Give one" if not reopens else "Give one, or add -m to ask with each",
                )
            if key in GLOBAL:
                tree = _with_experiment(tree, groups, key, str(value))
            elif key in groups.names():
                tree = OmegaConf.merge(tree, {key: OmegaConf.load(_option(groups, key, str(value)))})
            else:
                _known(key)
                OmegaConf.update(tree, key, value)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([UserError(str(error).splitlines()[0])]) from error
    return to_config(tree) if reopens else _settled(config, to_config(tree))


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


def check_changes(before: Config, after: Config, allowed: Sequence[str] = MAY_CHANGE) -> None:
    """Refuse changes that would make the rest of the run another one, all of them at once.

    Raises:
        UserError: naming each with its old and its new value.
    """
    changed = changes(fixed_settings(before, allowed), fixed_settings(after, allowed))
    if changed:
        raise UserError(
            f"These settings would make it another run: {', '.join(changed)}",
            where="resume=",
            do=f"Leave them out, or start a new run. {_MAY[allowed is MAY_CHANGE]} may differ",
        )


def _with_experiment(tree: Any, groups: Any, group: str, name: str) -> Any:
    """Lay an experiment over a configuration: the options that it selects, then its own values."""
    from omegaconf import OmegaConf

    content = OmegaConf.load(_option(groups, group, name))
    for entry in content.pop("defaults", []):
        chosen = entry.items() if OmegaConf.is_dict(entry) else ()
        for key, option in chosen:
            part = str(key).removeprefix("override ").lstrip("/")
            if part in groups.names() and option is not None:
                tree = OmegaConf.merge(tree, {part: OmegaConf.load(_option(groups, part, str(option)))})
    content.pop("hydra", None)
    return OmegaConf.merge(tree, content)


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
