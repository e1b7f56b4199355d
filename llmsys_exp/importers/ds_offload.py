"""Offload in a DeepSpeed configuration: both sections, and the names that older files use for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers.sheet import Sheet

_PLACES = ("device", "pin_memory", "nvme_path")


def put_offload(sheet: Sheet, section: dict[str, Any], stage: int) -> None:
    """Map both sections and the names that older files use for them."""
    for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_params", "offload_param")):
        if section.pop(old, False):
            section.setdefault(new, {"device": "cpu"})
            sheet.note(f"zero_optimization.{old} is an older name of {new}.device=cpu")
    pinned = section.pop("cpu_offload_use_pin_memory", None)
    places = {
        "optimizer": section.pop("offload_optimizer", None),
        "param": section.pop("offload_param", None),
    }
    for ours, place in places.items():
        if place is not None and not isinstance(place, Mapping):
            where = f"zero_optimization.offload_{ours}"
            raise UserError(f"{where} is {place!r}", where=str(sheet.source), do="It must be a mapping")
        device = _put_place(sheet, ours, place or {}, pinned)
        if ours == "param" and device != "none" and stage < 3:
            sheet.note(f"offload_param.device={device}: DeepSpeed offloads weights at stage 3 only; left out")
            sheet.put("offload.param", "none")


def _put_place(sheet: Sheet, ours: str, place: Mapping[str, Any], pinned: Any) -> str:
    device = str(place.get("device") or "none")
    where = f"zero_optimization.offload_{ours}"
    if device not in ("none", "cpu", "nvme"):
        raise UserError(
            f"{where}.device is {device!r}", where=str(sheet.source), do="It must be none, cpu or nvme"
        )
    sheet.put(f"offload.{ours}", device)
    if device == "none":
        return device
    sheet.put("offload.pin_memory", bool(place.get("pin_memory", pinned or False)))
    if place.get("nvme_path"):
        sheet.put("offload.nvme_path", str(place["nvme_path"]))
    for key, value in place.items():
        if key not in _PLACES:
            matters = key == "ratio" and value != 1
            sheet.tell(f"{where}.{key}", "left to DeepSpeed's default", value=value, matters=matters)
    return device
