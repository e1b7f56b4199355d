"""The data of a run: which files it reads, with their hashes; rows and split are told by the worker."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.evidence.told import data_told

ROLES = {"train": "train_file", "heldout": "heldout_file", "prompts": "prompts_file"}
MOST_FILES = 500
"""Files of a folder that are named one by one; of a larger one the worker's own hash over all has to do."""


def data_paths(config: Config, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return what the run reads by its role: files, folders, or data sets of the hub by their id."""
    found = {role: str(inputs[key]) for role, key in ROLES.items() if inputs.get(key)}
    calibration = config.export.gptq.calibration
    if Step.quantize in config.steps and calibration is not None:
        found["calibration"] = str(shipped_path(calibration))
    return found


def data_files(paths: Mapping[str, str]) -> dict[str, Path]:
    """Return the files to hash: a role's own, or those of its folder as `role/relative name`."""
    found: dict[str, Path] = {}
    for role, text in paths.items():
        path = Path(text)
        if path.is_file():
            found[role] = path
        elif path.is_dir():
            # as workers do: what libraries leave behind is not the data
            inside = sorted(one for one in path.rglob("*") if one.is_file())
            inside = [one for one in inside if not one.name.startswith((".", "cache-"))]
            if len(inside) <= MOST_FILES:
                found |= {f"{role}/{one.relative_to(path)}": one for one in inside}
    return found


def data_facts(
    paths: Mapping[str, str], hashes: Mapping[str, Mapping[str, Any]], results: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the data's part of the manifest, and notes on files that changed while the run was going on.

    Args:
        paths: of `data_paths`.
        hashes: of `data_files`, as far as they are known.
        results: of the steps; empty before they are done.
    """
    told = data_told(results)
    files: dict[str, dict[str, Any]] = deepcopy(told["files"])
    notes = []
    for role, path in paths.items():
        mine, seen = hashes.get(role, {}), files.get(role, {}).get("sha256")
        digest = mine.get("sha256") or seen
        if mine.get("sha256") and seen and mine["sha256"] != seen:
            notes.append(f"data: {path} changed between the start and the moment when it was read")
            digest = seen
        files[role] = {"path": path, "sha256": digest, "bytes": mine.get("bytes")}
    for name, one in hashes.items():
        if "/" in name:
            files[name] = {"path": str(Path(paths[name.split("/", 1)[0]]) / name.split("/", 1)[1]), **one}
    return {**told, "files": dict(sorted(files.items()))}, notes
