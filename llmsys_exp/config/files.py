"""Check the YAML files that a command line selects: syntax, keys, options and types, with line numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf._utils import get_yaml_loader

from llmsys_exp.config.folders import ROOT_CONFIG
from llmsys_exp.config.groups import Groups
from llmsys_exp.config.problems import unknown_key, unknown_option, value_problem
from llmsys_exp.config.tree import settings_tree
from llmsys_exp.errors import UserError

GLOBAL_PACKAGE = "@package _global_"


def file_problems(overrides: Sequence[str], groups: Groups) -> list[UserError]:
    """Check the root, the experiment and the options that the command line selects."""
    problems: list[UserError] = []
    for group, path in _selected(overrides, groups):
        problems += check_file(path, group, groups)
    return problems


def check_file(path: Path, group: str, groups: Groups) -> list[UserError]:
    """Check one YAML file of a group (empty for the root)."""
    shown = _shown(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [UserError("The file cannot be read", where=shown, why=str(error), do="Save it as UTF-8 text")]
    try:
        node = yaml.compose(text, Loader=get_yaml_loader())
    except yaml.YAMLError as error:
        return [_syntax(error, shown)]
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        return [UserError("The file is not a mapping of keys to values", where=shown)]
    at_root = not group or GLOBAL_PACKAGE in text.split("\n\n")[0]
    return list(_check_mapping(node, "" if at_root else group, shown, groups))


def alias_problem(text: str, shown: str, what: str) -> list[UserError]:
    """Refuse aliases: a few lines of them can stand for more than any memory holds.

    Raises:
        yaml.YAMLError: for broken YAML before the first one.
    """
    found = next(
        (one for one in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(one, yaml.AliasEvent)), None
    )
    if found is None:
        return []
    where = f"{shown}, line {found.start_mark.line + 1}"
    return [UserError(f"Aliases (*name) are not read in {what}", where=where, do="Write the value out")]


def load_file(path: Path) -> Any:
    """Return the content of a YAML file that `check_file` found nothing wrong with."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=get_yaml_loader())  # a SafeLoader


def _check_mapping(node: yaml.MappingNode, prefix: str, shown: str, groups: Groups) -> Iterator[UserError]:
    tree = settings_tree()
    for key_node, value_node in node.value:
        where = f"{shown}, line {key_node.start_mark.line + 1}"
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        if key == "defaults":
            yield from _check_defaults(value_node, shown, groups)
        elif key == "hydra":
            continue
        elif not tree.knows(key):
            yield unknown_key(key, groups, where=where)
        elif key in tree.sections:
            yield from _check_section(key, value_node, where=where, shown=shown, groups=groups)
        else:
            problem = value_problem(key, _value(value_node), where=where)
            if problem is not None:
                yield problem


def _check_section(
    key: str, node: yaml.Node, *, where: str, shown: str, groups: Groups
) -> Iterator[UserError]:
    if isinstance(node, yaml.MappingNode):
        yield from _check_mapping(node, key, shown, groups)
        return
    names = ", ".join(settings_tree().children(key))
    do = f"Give settings below it ({names}), or choose an option in the defaults list: override /{key}: NAME"
    yield UserError(f"{key} is a section, not a setting", where=where, do=do)


def _check_defaults(node: yaml.Node, shown: str, groups: Groups) -> Iterator[UserError]:
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        if not isinstance(item, yaml.MappingNode):
            continue
        for key_node, value_node in item.value:
            where = f"{shown}, line {key_node.start_mark.line + 1}"
            group = _group(str(key_node.value))
            option = _value(value_node)
            if group.startswith("hydra/") or option is None:
                continue
            if group not in groups.names():
                yield UserError(
                    f"{group} is not a group", where=where, do=f"Groups: {', '.join(groups.names())}"
                )
            elif groups.file(group, str(option)) is None:
                yield unknown_option(group, str(option), groups, where=where)


def _selected(overrides: Sequence[str], groups: Groups) -> list[tuple[str, Path]]:
    chosen = _defaults_of(groups.file("", ROOT_CONFIG))
    given = _given_options(overrides, groups)
    for group in ("experiment", "debug"):
        option = given.get(group, chosen.get(group))
        chosen.update(_defaults_of(groups.file(group, option)) if option else {})
    chosen.update(given)
    root = groups.file("", ROOT_CONFIG)
    paths = [("", root)] + [(group, groups.file(group, name)) for group, name in chosen.items() if name]
    return [(group, path) for group, path in paths if path is not None]


def _given_options(overrides: Sequence[str], groups: Groups) -> dict[str, str]:
    given: dict[str, str] = {}
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            continue
        if (
            override.key_or_group in groups.names()
            and not override.is_sweep_override()
            and not override.is_delete()
        ):
            given[override.key_or_group] = str(override.value() or "")
    return given


def _defaults_of(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        content = load_file(path)
    except yaml.YAMLError:
        return {}
    entries = content.get("defaults", []) if isinstance(content, dict) else []
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {_group(str(key)): str(value or "") for key, value in pairs}


def _group(key: str) -> str:
    words = [word for word in key.split() if word not in ("override", "optional")]
    return words[-1].lstrip("/").partition("@")[0] if words else key


def _value(node: yaml.Node) -> Any:
    loader = get_yaml_loader()("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def _shown(path: Path) -> str:
    resolved = path.resolve()
    try:
        return str(resolved.relative_to(Path.cwd()))
    except ValueError:
        return str(resolved)


def _syntax(error: yaml.YAMLError, shown: str) -> UserError:
    mark = getattr(error, "problem_mark", None)
    where = f"{shown}, line {mark.line + 1}, column {mark.column + 1}" if mark else shown
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return UserError(f"Broken YAML: {what}", where=where, do="Mend the line, or the one above it")
