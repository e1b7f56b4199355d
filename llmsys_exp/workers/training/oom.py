"""Out of memory: in which part of a step, with how much taken, and what the plan had said about it."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from llmsys_exp.workers import events
from planner.units import gib

OOM_GPU, OOM_HOST = "oom_gpu", "oom_host"

_GPU = re.compile(
    r"(CUDA|HIP) (error: )?out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure.*out of memory",
    re.IGNORECASE,
)
_HOST = re.compile(r"can't allocate memory|not enough memory|Cannot allocate memory|bad_alloc", re.IGNORECASE)

_MOMENTS = (
    ("deepspeed/runtime/engine.py", "forward", "forward"),
    ("deepspeed/runtime/engine.py", "backward", "backward"),
    ("deepspeed/runtime/engine.py", "step", "step"),
)
"""File and function that mark where in a training step we are, the outermost first."""

_PLANNED = {
    "load model": ("load",),
    "start engine": ("engine start",),
    "forward": ("forward",),
    "backward": ("backward", "reduce"),
    "step": ("step",),
}
"""Moment -> phases of the forecast that cover it, without their numbers."""

_plan: dict[str, Any] = {}


def remember(plan: Mapping[str, Any]) -> None:
    """Keep the plan of the job for the case that memory runs out."""
    _plan.clear()
    _plan.update(plan)


def kind_of(error: BaseException) -> str | None:
    """Return `oom_gpu`, `oom_host`, or None where the error is another."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or _GPU.search(text):
        return OOM_GPU
    if isinstance(error, MemoryError) or _HOST.search(text):
        return OOM_HOST
    return None


def explain(error: BaseException) -> tuple[str, dict[str, Any]]:
    """Return a text for the user and figures for the records."""
    moment = moment_of(error.__traceback__)
    figures: dict[str, Any] = {"moment": moment, "kind": kind_of(error), **_taken(), **_forecast(moment)}
    figures["asked"] = _asked(str(error))
    return _text(figures), {key: value for key, value in figures.items() if value is not None}


def moment_of(trace: TracebackType | None) -> str:
    """Say where an error came up: forward, backward or step of the engine, else the phase of the run."""
    for frame in traceback.extract_tb(trace):
        for file, function, moment in _MOMENTS:
            if frame.name == function and frame.filename.replace("\\", "/").endswith(file):
                # an evaluation runs the engine's forward pass too
                return f"{moment}, {events.current_phase()}" if _evaluates() else moment
    return events.current_phase() or "start"


def _evaluates() -> bool:
    return events.current_phase().startswith("evaluate")


def _taken() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    from llmsys_exp.workers.training.memory import nvml_process_bytes

    device = torch.device("cuda", torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info(device)
    own = nvml_process_bytes(device)
    return {
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "device_bytes": total,
        "device_free_bytes": free,
        "others_bytes": None if own is None else max(0, total - free - own),
    }


def _forecast(moment: str) -> dict[str, Any]:
    forecast, verdict = _plan.get("forecast") or {}, _plan.get("verdict") or {}
    covering = _PLANNED.get(moment, ())
    peaks = [
        peak
        for name, peak in (forecast.get("phases") or {}).items()
        if name.rstrip(" 0123456789") in covering
    ]
    components = forecast.get("components") or {}
    largest = max(components, key=components.get, default=None)
    return {
        "planned_gib": max(peaks, default=None),
        "planned_peak_gib": forecast.get("peak_allocated_gib"),
        "budget_gib": verdict.get("budget_gib"),
        "limit_bytes": _plan.get("allocator_limit_bytes"),
        "largest": largest,
        "largest_gib": components.get(largest) if largest else None,
    }


def _asked(text: str) -> str | None:
    found = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
    return found[1] if found else None


def _text(at: Mapping[str, Any]) -> str:
    place = "The machine ran out of main memory" if at["kind"] == OOM_HOST else "The GPU ran out of memory"
    first = f"{place} in: {at['moment']}"
    if at.get("asked"):
        first += f"; {at['asked']} more were asked for"
    if "allocated_bytes" in at:
        first += f" with {_gib(at['allocated_bytes'])} allocated and {_gib(at['reserved_bytes'])} reserved"
        first += f" of {_gib(at['limit_bytes'] or at['device_bytes'])}"
        first += " that the worker may take" if at.get("limit_bytes") else ""
    sentences = [first]
    if at.get("others_bytes"):
        sentences.append(f"Other processes hold {_gib(at['others_bytes'])}")
    if at.get("planned_peak_gib") is not None:
        here = f"{at['planned_gib']:.2f} GiB here and " if at.get("planned_gib") is not None else ""
        said = f"The plan said {here}{at['planned_peak_gib']:.2f} GiB at the peak"
        if at.get("budget_gib") is not None:
            said += f", of {at['budget_gib']:.2f} GiB that a rank may use"
        sentences.append(said)
    if at.get("largest") and at.get("largest_gib") is not None:
        sentences.append(f"Its largest part: {at['largest']}, {at['largest_gib']:.2f} GiB")
    return ".  ".join(sentences) + "."


def _gib(size_bytes: int) -> str:
    return f"{gib(size_bytes):.2f} GiB"
