"""Does an adapter belong to the model that it is to be merged into? Told before any weight is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.inputs.weight_files import Stored, fingerprint, stored_tensors
from llmsys_exp.workers.training.saving import BASE_FILE, PEFT_PREFIX

CONFIG = "adapter_config.json"
A, B = (".lora_A.weight", ".lora_B.weight")


def check_adapter(adapter: Path, base: Path | None) -> None:
    """Refuse an adapter that was trained over another model; `base` is None where it has no files.

    Raises:
        UserError: naming both models and the first thing in them that does not match.
    """
    tensors = stored_tensors(adapter)
    if not (adapter / CONFIG).is_file() or not tensors:
        raise UserError(
            "The adapter folder is not whole", where=str(adapter), do="Train again, or copy all its files"
        )
    if base is None:
        return
    trained_over = _trained_over(adapter)
    wanted, found = trained_over.get("fingerprint"), fingerprint(base)
    mismatch = _shape_mismatch(tensors, stored_tensors(base))
    if not mismatch and wanted and found and wanted != found:
        mismatch = "Shapes agree, but the weights of that model are others"
    if mismatch:
        raise UserError(
            "The adapter was trained over another model",
            where=f"{adapter}: {trained_over.get('model', 'unknown')}; to be merged into {base}",
            why=mismatch,
            do="Set model.path to the model that it was trained over",
        )


def _trained_over(adapter: Path) -> dict[str, Any]:
    """What training recorded beside the adapter, else what peft did."""
    try:
        return json.loads((adapter / BASE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
        return {"model": settings.get("base_model_name_or_path")}


def _shape_mismatch(adapter: dict[str, Stored], base: dict[str, Stored]) -> str:
    """Compare inner and outer width of each pair of adapter matrices with the weight below them.

    Weights that transformers renames or stacks while loading are not found by name and are left to peft.
    """
    found = 0
    for name, one in adapter.items():
        if not name.endswith((A, B)):
            continue
        weight = base.get(f"{name.removeprefix(PEFT_PREFIX)[: -len(A)]}.weight")
        if weight is None or len(weight.shape) != 2 or len(one.shape) != 2:
            continue
        found += 1
        width = one.shape[1] if name.endswith(A) else one.shape[0]
        if width not in weight.shape:
            place = name.removeprefix(PEFT_PREFIX)
            return f"{place} is {list(one.shape)}, the weight there {list(weight.shape)}"
    if not found and base and not _renamed(adapter, base):
        return "None of the modules that it adapts is in that model"
    return ""


def _renamed(adapter: dict[str, Stored], base: dict[str, Stored]) -> bool:
    """Whether modules go by the same last names, so that only what stands before them differs."""
    ends = {name.rpartition(".weight")[0].rpartition(".")[2] for name in base}
    return any(name[: -len(A)].rpartition(".")[2] in ends for name in adapter if name.endswith((A, B)))
