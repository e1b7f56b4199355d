"""Write an experiment: overrides and chosen settings as a YAML file that `experiment=NAME` selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import conf_dir, experiments_dir
from llmsys_exp.config.groups import Groups
from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import write_text
from llmsys_exp.runs.folder import check_name

USER_CONF = Path("conf")


def experiment_path(name: str) -> Path:
    """Where an experiment of that name is kept: with the shipped ones in a checkout, else in ./conf."""
    check_name(name)
    in_checkout = (conf_dir().parent / "experiments").is_dir()
    folder = experiments_dir() if in_checkout else USER_CONF / "experiment"
    return folder / f"{name}.yaml"


def check_free(path: Path, *, force: bool) -> None:
    """Refuse to overwrite a file that was not made for this."""
    if path.exists() and not force:
        raise UserError(f"{path} exists", do="Choose another name, or add --force to replace it")


def write_experiment(
    path: Path, overrides: Sequence[str], settings: Mapping[str, Any], *, comment: str
) -> None:
    """Write the file: groups of the overrides as defaults, everything else as values."""
    import yaml

    groups, values = _split(overrides)
    content: dict[str, Any] = {}
    for key, value in {**values, "name": path.stem, **settings}.items():
        _put(content, key.split("."), value)
    lines = ["# @package _global_", *(f"# {line}" for line in comment.splitlines())]
    if groups:
        lines += ["defaults:", *(f"  - override /{group}: {option}" for group, option in groups.items()), ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=False)
    write_text(path, "\n".join(lines) + "\n" + body)


def _split(overrides: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    import yaml

    known = set(Groups.shipped().names())
    groups: dict[str, str] = {}
    values: dict[str, Any] = {}
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        if key in known:
            groups[key] = value
        else:
            values[key] = yaml.safe_load(value)
    return groups, values


def _put(tree: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value
