"""Read manifest.json and start.json of every version, in today's form.

A manifest is data: nothing in it is executed, and what it names is checked before it is used. One that was
edited by hand is read all the same; `runs.manifest.is_edited` tells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.evidence.told import data_told, tokens_of
from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.manifest import EMPTY, SCHEMA_VERSION, SEAL
from llmsys_exp.runs.paths import RunPaths

LARGEST_BYTES = 64 << 20
"""Real ones have some ten thousand bytes."""
_NAMES = {dict: "a group", list: "a list", str: "text", int: "a number", float: "a number"}
_ALSO_NULL = {"code", "forecast", "verdict", "serving", "started", "finished", "energy_wh", "energy"}
_NULL_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("code", "forecast", "verdict", "serving", "energy"), dict),
    **dict.fromkeys(("started", "finished"), str),
    "energy_wh": (int, float),
}

_GROUPS: Mapping[str, type] = {
    **dict.fromkeys(("choices", "attempts", "starts", "later", "measured.rows"), list),
    **dict.fromkeys(("results", "model.files", "data.files"), dict),
}


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a manifest, or a start.json, in the form that `runs.manifest.EMPTY` shows.

    Raises:
        UserError: when it is missing, cut short, too large, of a wrong shape or of a newer version.
    """
    content = _parsed(path)
    version = content.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _wrong(path, f"schema_version is {version!r}")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"This manifest has version {version}, and this llmsys reads versions up to {SCHEMA_VERSION}",
            where=str(path),
            do="Read it with the llmsys that wrote it, or a newer one",
        )
    for step in range(version, SCHEMA_VERSION):
        _check(path, content, _OLDER[step])
        content = _MIGRATIONS[step](content)
    content.setdefault("id", "")
    whole = {key: content[key] if key in content else deepcopy(value) for key, value in EMPTY.items()}
    whole |= {key: value for key, value in content.items() if key not in whole}
    _check(path, whole, EMPTY)
    # a folder may have moved since, but what it was called is what tells runs apart
    whole["id"] = whole["id"] or run_id(path.parent)
    return whole


def find_manifest(path: Path) -> dict[str, Any] | None:
    """Return a manifest in today's form; None where there is none that can be read."""
    try:
        return read_manifest(path)
    except UserError:
        return None


def has_manifest(paths: RunPaths) -> bool:
    """Whether a run is complete: its manifest is there and no half of a file."""
    return isinstance(read_json(paths.manifest), dict)


def run_id(folder: Path) -> str:
    """Return what a run is called: the experiment's name and the folder's.

    >>> run_id(Path("outputs/quickstart/2026-11-30_07-00-00-0badcafe"))
    'quickstart/2026-11-30_07-00-00-0badcafe'
    """
    folder = folder.absolute()
    return f"{folder.parent.name}/{folder.name}"


def _parsed(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise _wrong(path, f"it has {size:,} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"The manifest cannot be read: {error.strerror or error}",
            where=str(path),
            do="llmsys runs lists run folders; only a run that is complete has a manifest",
        ) from error
    except RecursionError as error:
        raise _wrong(path, "it is nested too deep") from error
    except ValueError as error:
        raise _wrong(path, f"it is cut short or no JSON: {error}") from error
    if not isinstance(content, dict):
        raise _wrong(path, "it is no group of keys")
    return content


def _check(path: Path, content: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Refuse keys that hold another kind of value than they should; missing ones are left to whoever asks."""
    for key, example in like.items():
        if key not in content:
            continue
        value, kind = content[key], _NULL_KINDS.get(key, type(example))
        if value is None and key in _ALSO_NULL:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = _NAMES[kind[0] if isinstance(kind, tuple) else kind]
            raise _wrong(path, f"{key} should be {wanted}, and it is {_short(value)}")
    for key in ("command", "overrides"):
        if any(not isinstance(one, str) for one in content.get(key) or ()):
            raise _wrong(path, f"{key} should be a list of texts")
    for key in _GROUPS:
        node: Any = content
        for name in key.split("."):
            node = node.get(name) if isinstance(node, Mapping) else None
        if node is not None and not _holds_groups(node, like=_GROUPS[key]):
            kind = "list" if _GROUPS[key] is list else "group"
            raise _wrong(path, f"{key} should be a {kind} of groups, and it is {_short(node)}")


def _holds_groups(node: Any, *, like: type) -> bool:
    if not isinstance(node, like):
        return False
    return all(isinstance(one, dict) for one in (node.values() if isinstance(node, dict) else node))


def _wrong(path: Path, why: str) -> UserError:
    do = "Take the file as llmsys wrote it; job.json beside it holds the settings, too"
    why = why[:1].upper() + why[1:] if why.startswith("it ") else why
    return UserError("This is no manifest that can be used", where=str(path), why=why, do=do)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _from_version_1(old: dict[str, Any]) -> dict[str, Any]:
    """Version 1 named ten packages, the machine in three words and the commit; nothing told of files."""
    results, config = old.get("results") or {}, old.get("config") or {}
    machine = dict(old.get("machine") or {})
    kept = {key: value for key, value in old.items() if key in EMPTY and key not in ("machine", SEAL)}
    return {
        **kept,
        "schema_version": 2,
        "seeds": {"run": old["seed"]} if "seed" in old else {},
        "environment": {
            "python": machine.pop("python", None),
            "platform": machine.pop("platform", None),
            "packages": old.get("versions") or {},
            "interpreter_of": {},
            "variables": {},
        },
        "machine": machine,
        "code": _code_of_version_1(old.get("git")),
        "model": _model_of_version_1(config, old.get("inputs") or {}, results),
        "data": data_told(results),
        "tokens": tokens_of(results),
        "notes": ["Written as version 1: it tells of ten packages, and neither of GPUs nor of files"],
    }


def _code_of_version_1(git: Any) -> dict[str, Any] | None:
    if not isinstance(git, dict):
        return None
    known = {"commit": git.get("commit"), "branch": None, "dirty": git.get("dirty")}
    return {**known, "patch": None, "patch_sha256": None, "untracked": [], "left_out": []}


def _model_of_version_1(
    config: Mapping[str, Any], inputs: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    model = config.get("model") or {}
    source = inputs.get("model_folder") or model.get("id")
    if model.get("weights") == "random":
        return {"source": source, "random_weights_seed": config.get("seed")}
    hashes = (results.get("export") or {}).get("base_weights_sha256") or {}
    files = {name: {"sha256": digest, "bytes": None} for name, digest in hashes.items()}
    return {"source": source, "revision": model.get("revision"), "files": files}


_VERSION_1: Mapping[str, Any] = {
    **{key: EMPTY[key] for key in ("finished", "command", "overrides", "name", "config", "inputs")},
    **{key: EMPTY[key] for key in ("machine", "choices", "forecast", "verdict", "serving", "measured")},
    **{key: EMPTY[key] for key in ("metrics", "results", "attempts", "timing_s")},
    "versions": {},
}
_OLDER: Mapping[int, Mapping[str, Any]] = {1: _VERSION_1}
_MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_version_1}
