"""Records of runs that never were, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.manifest import EMPTY, sealed


def settings(**changes: Any) -> dict[str, Any]:
    """Settings of a run, with values by dotted names written with two underscores."""
    plain = to_plain(Config())
    plain["model"]["id"], plain["data"]["name"], plain["data"]["train"] = "tiny", "rows", "rows.json"
    for key, value in changes.items():
        *sections, name = key.split("__")
        node = plain
        for section in sections:
            node = node[section]
        node[name] = value
    return plain


def write_manifest(folder: Path, **changes: Any) -> Path:
    """Write a sealed manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "manifest.json", sealed({**EMPTY, "config": settings(), "name": "default", **changes})
    )
    return folder / "manifest.json"
