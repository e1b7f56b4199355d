"""Reads the text of a source file: bounded, as data only."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from llmsys_exp.errors import UserError

MOST_BYTES = 1 << 20
MOST_DEPTH = 20
MOST_NODES = 20_000


class _Loader(yaml.SafeLoader):
    """A safe loader that takes neither aliases (which can grow without end) nor repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not read here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} stands there twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


def read_text(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file.

    Raises:
        UserError: when it is not there, too large, or no text.
    """
    if path.exists() and not path.is_file():  # a pipe or a device might never end
        raise UserError(f"{path} is no regular file", do="Give a YAML, JSON or shell file")
    try:
        with path.open("rb") as stream:
            data = stream.read(most_bytes + 1)
        if len(data) > most_bytes:
            why = f"At most {most_bytes:,} bytes are read as a configuration"
            raise UserError("The file is too large", where=str(path), why=why)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(
            "The file is not text",
            where=str(path),
            do="Give a YAML, JSON or shell file; pickles are never read",
        ) from error
    if "\0" in text:
        raise UserError("The file is not text", where=str(path), do="Give a YAML, JSON or shell file")
    return text


def parse_yaml(text: str, path: Path) -> Any:
    """Return the content of a YAML text, as data only.

    Raises:
        UserError: for broken YAML, tags, aliases, and anything too deep.
    """
    try:
        return _bounded(yaml.load(text, Loader=_Loader), path)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(
            f"Broken YAML: {what}", where=where, do="Mend the line, or the one above it"
        ) from error
    except (RecursionError, ValueError) as error:
        raise UserError("The YAML cannot be read", where=str(path), why=str(error)[:200]) from error


def parse_json(text: str, path: Path) -> Any:
    """Return the content of a JSON text.

    Raises:
        UserError: for broken JSON and anything too deep.
    """
    try:
        return _bounded(json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path)), path)
    except json.JSONDecodeError as error:
        raise UserError(f"Broken JSON: {error.msg}", where=f"{path}, line {error.lineno}") from error
    except (RecursionError, ValueError) as error:
        raise UserError("The JSON cannot be read", where=str(path), why=str(error)[:200]) from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping that a JSON or YAML file holds.

    Raises:
        UserError: when it holds something else.
    """
    text = read_text(path)
    content = parse_json(text, path) if text.lstrip().startswith("{") else parse_yaml(text, path)
    if not isinstance(content, dict):
        raise UserError("The file is not a mapping of keys to values", where=str(path))
    return {str(key): value for key, value in content.items()}


def _once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UserError(f"{key} stands there twice", where=str(path), do="Keep one")
        found[key] = value
    return found


def _bounded(content: Any, path: Path) -> Any:
    """Refuse what is nested or long beyond any configuration."""
    waiting, seen = [(content, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if depth > MOST_DEPTH or seen > MOST_NODES:
            raise UserError(
                "The file is nested too deep or holds too much for a configuration", where=str(path)
            )
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        waiting += [(child, depth + 1) for child in children]
    return content
