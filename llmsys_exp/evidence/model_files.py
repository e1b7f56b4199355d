"""The model of a run: which one, which revision, and the hash of every file that is loaded of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Config, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.inputs.weight_files import files_to_load
from llmsys_exp.plan.case_mlp import is_mlp

BESIDE = {".json", ".model", ".txt", ".jinja", ".py", ".tiktoken"}
"""Shape, tokenizer and code."""
OLDER = {".bin", ".pt", ".pth", ".gguf"}
"""Weights where there are no safetensors files."""
SNAPSHOTS = "snapshots"


def model_facts(config: Config, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's part of the manifest, without the hashes of files."""
    model, folder = config.model, inputs.get("model_folder")
    if is_mlp(config):
        return {"source": model.id, "random_weights_seed": config.seed}
    source = str(folder or model.path or model.id)
    if model.weights is Weights.random:
        return {"source": source, "id": model.id, "random_weights_seed": config.seed}
    return {"source": source, "id": model.id, "revision": model.revision or _snapshot(folder)}


def model_files(config: Config, inputs: Mapping[str, Any]) -> dict[str, dict[str, Path]]:
    """Return the files of `model`, and of `adapter` and `tokenizer` where they are others, by relative name.

    Raises:
        EvidenceError: for a folder that is not whole.
    """
    random = config.model.weights is Weights.random
    folders = {"model": inputs.get("model_folder"), "adapter": inputs.get("adapter_folder")}
    found = {name: _files(Path(folder), weights=not random) for name, folder in folders.items() if folder}
    tokenizer = Path(str(config.model.tokenizer)).expanduser()
    if config.model.tokenizer and tokenizer.is_dir():
        found["tokenizer"] = _files(tokenizer, weights=False)
    return found


def _files(folder: Path, *, weights: bool) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    there = sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
    chosen = [one for one in there if one.suffix in BESIDE]
    if weights:
        try:
            loaded = files_to_load(folder)
        except UserError as error:
            raise EvidenceError(str(error)) from error
        loaded = loaded or [one for one in there if one.suffix == ".safetensors"]
        chosen += loaded or [one for one in there if one.suffix in OLDER]
    return {one.name: one for one in sorted(chosen)}


def _snapshot(folder: str | None) -> str | None:
    """The commit of a folder in the hub cache, which is what its name says."""
    path = Path(folder) if folder else None
    return path.name if path is not None and path.parent.name == SNAPSHOTS else None
