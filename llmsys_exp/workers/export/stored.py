"""What lies in the files that were written: is it the merged model, and is it another one than the base?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.inputs.weight_files import Stored, sha256_of_files, stored_tensors


@dataclass(frozen=True)
class Compared:
    """Weights of a written folder against those of the base."""

    common: int
    changed: int
    adapted_unchanged: int
    """Weights below adapters that came out as they were: the update was lost in rounding."""


def compare_with_base(base: Path, written: Path, adapted: Collection[str]) -> Compared:
    """Compare what lies in the files weight by weight; `adapted` names those that should have changed."""
    old, new = stored_tensors(base), stored_tensors(written)
    common = [name for name in new if name in old and old[name].shape == new[name].shape]
    changed = {name for name in common if not _equal(old[name], new[name], name)}
    lost = sum(name in adapted for name in common) - sum(name in adapted for name in changed)
    return Compared(len(common), len(changed), lost)


def hashes(base: Path | None, written: Path) -> dict[str, Any]:
    """Hash the files of both, for the records."""
    found = {"weights_sha256": sha256_of_files(written)}
    return found if base is None else found | {"base_weights_sha256": sha256_of_files(base)}


def _equal(old: Stored, new: Stored, name: str) -> bool:
    import torch
    from safetensors import safe_open

    with safe_open(old.file, "pt") as before, safe_open(new.file, "pt") as after:
        written = after.get_tensor(name)
        return torch.equal(before.get_tensor(name).to(written.dtype), written)
