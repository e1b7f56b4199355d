"""From overrides to a typed `Config`: Hydra composes, our checks explain what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from llmsys_exp.config.experiment_path import register_experiments
from llmsys_exp.config.folders import ROOT_CONFIG, conf_dir
from llmsys_exp.config.groups import Groups
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import ConfigError, UserError

VERSION_BASE = "1.3"
SCHEMA = "llmsys_schema"
COMPOSE_ERRORS = (HydraException, OmegaConfBaseException)


class MissingValuesError(ConfigError):
    """Settings that an experiment leaves to whoever runs it, and that are not given."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Name the settings."""
        super().__init__([UserError(f"{key} has no value", do=f"Add {key}=VALUE") for key in keys])
        self.keys = tuple(keys)


def register_schema() -> None:
    """Make the dataclasses known to Hydra under the name that `conf/config.yaml` merges first."""
    store = ConfigStore.instance()
    if f"{SCHEMA}.yaml" not in store.repo:  # building it takes as long as a fifth of a composition
        store.store(name=SCHEMA, node=Config)


def compose_tree(overrides: Sequence[str]) -> DictConfig:
    """Compose the whole tree, Hydra's own node included; raise a ConfigError that names every problem."""
    register_schema()
    register_experiments(overrides)
    check_added(overrides)
    try:
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="llmsys"):
            return compose(ROOT_CONFIG, overrides=list(overrides), return_hydra_config=True)
    except Exception as error:
        raise explain(error, overrides) from error
    finally:
        GlobalHydra.instance().clear()


def compose_config(overrides: Sequence[str]) -> Config:
    """Compose and convert; what tests and Python callers use."""
    tree = compose_tree(overrides)
    OmegaConf.set_struct(tree, False)
    tree.pop("hydra", None)
    return to_config(tree)


def to_config(tree: DictConfig) -> Config:
    """Turn a composed tree (without Hydra's node) into the plain typed form; OmegaConf ends here."""
    try:
        OmegaConf.resolve(tree)
        missing = sorted(OmegaConf.missing_keys(tree))
    except OmegaConfBaseException as error:
        raise ConfigError([_short(error)]) from error
    if missing:
        raise MissingValuesError(missing)
    try:
        config = OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        raise ConfigError([_short(error)]) from error
    if not isinstance(config, Config):
        raise TypeError(f"the schema did not come first in {ROOT_CONFIG}.yaml: got {type(config).__name__}")
    problems = _wrong_words(config)
    if problems:
        raise ConfigError(problems)
    return config


def explain(error: Exception, overrides: Sequence[str], extra_roots: Sequence[Path] = ()) -> Exception:
    """Turn an error of composing into a ConfigError; one that has nothing to do with it is handed back."""
    problems = find_problems(overrides, extra_roots)
    if problems or isinstance(error, COMPOSE_ERRORS):
        return ConfigError(problems or [_short(error)])
    return error


def find_problems(overrides: Sequence[str], extra_roots: Sequence[Path] = ()) -> list[UserError]:
    """Check overrides and the files they select; an empty list when nothing is wrong with them."""
    from llmsys_exp.config.files import file_problems
    from llmsys_exp.config.problems import override_problems

    groups = Groups.shipped(*extra_roots)
    return [*override_problems(overrides, groups), *file_problems(overrides, groups)]


def check_added(overrides: Sequence[str]) -> None:
    """Refuse `+key=value` for keys outside the schema, which OmegaConf would let pass unseen."""
    added = [text for text in overrides if text.startswith("+")]
    if not added:
        return
    from llmsys_exp.config.problems import override_problems

    problems = override_problems(added, Groups.shipped())
    if problems:
        raise ConfigError(problems)


def _wrong_words(node: Any, prefix: str = "") -> list[UserError]:
    """Refuse texts other than `auto` where the schema allows text for that word only."""
    problems: list[UserError] = []
    for item in fields(node):
        value = getattr(node, item.name)
        if is_dataclass(value):
            problems += _wrong_words(value, f"{prefix}{item.name}.")
        elif isinstance(value, str) and value != AUTO and str(item.type).startswith("Union["):
            from llmsys_exp.config.problems import value_problem

            problem = value_problem(f"{prefix}{item.name}", value, where="")
            problems += [problem] if problem else []
    return problems


def _short(error: Exception) -> UserError:
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and (
        new := _new_entry(cause.full_key or "")
    ):
        return new
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    what = lines[0] if lines else type(error).__name__
    if what.startswith("Ambiguous value"):
        return UserError(what, do="To try each value add -m; for a list write key=[a,b]")
    if what.startswith("Additional config directory"):
        return UserError(what, where="--config-dir", do="Name a folder that exists")
    return UserError(what, do="Show the whole tree with --cfg job")


def _new_entry(key: str) -> UserError | None:
    """Describe an entry that a mapping of names to values does not have; None for other keys."""
    from llmsys_exp.config.tree import settings_tree

    mapping, _, name = key.rpartition(".")
    if mapping not in settings_tree().leaves:
        return None
    return UserError(f"{mapping} has no entry {name} yet", do=f"A new one takes a plus: +{key}=VALUE")
