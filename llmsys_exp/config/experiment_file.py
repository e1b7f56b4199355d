"""Write an experiment: overrides and chosen settings as a YAML file that `experiment=NAME` selects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import conf_dir, experiments_dir
from llmsys_exp.config.groups import Groups
from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import publish

USER_CONF = Path("conf")
NOT_SAVED = ("experiment", "debug")  # both bring settings of their own, which an experiment cannot build on
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,79}")
_WORDS = ("true", "false", "null", "none", "yes", "no", "on", "off", "nan", "inf")  # values, to Hydra or YAML


def experiment_path(name: str) -> Path:
    """Where an experiment of that name is kept: with the shipped ones in a checkout, else in ./conf.

    Raises:
        UserError: for a name that `experiment=NAME` would not find again.
    """
    if not _NAME.fullmatch(name) or name.lower() in _WORDS:
        raise UserError(
            f"{name!r} cannot be the name of an experiment",
            where="--save",
            do="Use letters, digits, dashes and underscores, beginning with a letter",
        )
    in_checkout = (conf_dir().parent / "experiments").is_dir()
    folder = experiments_dir() if in_checkout else USER_CONF / "experiment"
    return folder / f"{name}.yaml"


def check_free(path: Path, *, force: bool) -> None:
    """Refuse to overwrite a file that was not made for this."""
    if path.is_dir() or (path.exists() and not force):
        raise _taken(path)


def _taken(path: Path) -> UserError:
    return UserError(f"{path} exists", do="Choose another name, or add --force to replace a file")


def check_savable(overrides: Sequence[str]) -> None:
    """Refuse overrides that a file of defaults and values cannot repeat."""
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        if text.startswith("~") or key in NOT_SAVED:
            raise UserError(
                f"--save cannot carry {text}",
                why="An experiment holds groups and settings",
                do="Give the settings themselves",
            )


def write_experiment(
    path: Path, overrides: Sequence[str], settings: Mapping[str, Any], *, comment: str, force: bool = False
) -> None:
    """Write the file: groups of the overrides as defaults, everything else as values.

    Raises:
        UserError: when the file is there by now, or the disk refuses.
    """
    import yaml

    groups, values = _split(overrides)
    content: dict[str, Any] = {}
    for key, value in {"name": path.stem, **values, **settings}.items():
        _put(content, key.split("."), value)
    lines = ["# @package _global_", *(f"# {line}" for line in comment.splitlines())]
    if groups:
        lines += ["defaults:", *(f"  - override /{group}: {option}" for group, option in groups.items()), ""]
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=False)
    _write(path, "\n".join(lines) + "\n" + body, force=force)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Without `force` a file that appeared meanwhile stays as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, text.encode(), overwrite=force)
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}") from error


def _split(overrides: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Groups and values, each read as Hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    known = set(Groups.shipped().names())
    groups: dict[str, str] = {}
    values: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.key_or_group in known:
            groups[override.key_or_group] = str(override.value())
        else:
            values[override.key_or_group] = override.value()
    return groups, values


def _put(tree: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value
