"""Experiments that lie anywhere: `experiment=FOLDER/NAME.yaml` beside `experiment=NAME`.

Hydra looks for options in its search path alone, so the file is put where it also looks (its ConfigStore),
under the very name that the command line gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.errors import ConfigError, UserError

GROUP = "experiment"
SUFFIX = ".yaml"


def experiment_file(option: str) -> Path | None:
    """Return the file that an option of `experiment` names by its path; None for a plain name."""
    if "/" not in option or not option.endswith(SUFFIX):
        return None
    path = Path(option).expanduser()
    return path if path.is_file() else None


def register_experiments(overrides: Sequence[str]) -> None:
    """Make the files known to Hydra that `experiment=` names by their path.

    Raises:
        ConfigError: naming what is wrong with such a file.
    """
    for text in overrides:
        key, _, option = text.partition("=")
        option = option.strip("'\"")
        if key.lstrip("+") != GROUP or "/" not in option or not option.endswith(SUFFIX):
            continue
        path = experiment_file(option)
        if path is None:
            raise ConfigError(
                [
                    UserError(
                        "There is no such file",
                        where=text,
                        do="Check the spelling; a relative path starts at the current folder",
                    )
                ]
            )
        _register(option, path)


def _register(option: str, path: Path) -> None:
    from hydra.core.config_store import ConfigStore

    from llmsys_exp.config.files import check_file, load_file
    from llmsys_exp.config.groups import Groups

    problems = _aliases(path) or check_file(path, "", Groups.shipped())
    if problems:
        raise ConfigError(problems)
    node: Any = load_file(path) or {}
    folder, _, name = option.rpartition("/")
    ConfigStore.instance().store(
        group=f"{GROUP}/{folder.strip('/')}", name=name, node=node, package="_global_"
    )


def _aliases(path: Path) -> list[UserError]:
    import yaml

    from llmsys_exp.config.files import alias_problem

    try:
        return alias_problem(path.read_text(encoding="utf-8"), str(path), "an experiment")
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []  # told by check_file
