"""Will quantising fit? Asked before it starts, from the headers of the model's files."""

from __future__ import annotations

from pathlib import Path

import psutil

import planner
from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Config, GatePolicy
from llmsys_exp.errors import DoesNotFit, UserError
from llmsys_exp.inputs.weight_files import Stored, stored_tensors
from llmsys_exp.plan.case import CPU
from llmsys_exp.report.console import Console
from llmsys_exp.runs.room import lack_of_memory, need_disk
from planner.gptq import GptqForecast, GptqJob, forecast_gptq
from planner.training_case import Quantization
from planner.units import GIB, gib

STEP = "Quantising"
STORED_BYTES = 2


def check_quantize(config: Config, *, source: Path | None, folder: Path, console: Console) -> None:
    """Forecast the step `quantize`, show it, and refuse what will not fit as `gate.policy` says.

    Raises:
        UserError: for calibration rows that are not there, or too little disk.
        DoesNotFit: for too little memory.
    """
    calibration = config.export.gptq.calibration
    if calibration is not None and not shipped_path(calibration).is_file():
        raise UserError("There is no such file", where=f"export.gptq.calibration={calibration}")
    tensors = stored_tensors(source) if source is not None and source.is_dir() else {}
    if not tensors:
        return  # nothing is known of the shape before the base is converted or downloaded
    forecast = forecast_gptq(gptq_job(config, tensors))
    console.line(_text(forecast))
    need_disk(STEP, forecast.disk_bytes, folder)
    problem = _lack(config, forecast)
    if problem is None or config.gate.policy is GatePolicy.off:
        return
    if config.gate.policy is GatePolicy.warn:
        console.line(console.style(f"warning: {problem}", "yellow"))
        return
    raise problem


def gptq_job(config: Config, tensors: dict[str, Stored]) -> GptqJob:
    """Return the planner's view of the step."""
    settings = config.export.gptq
    return GptqJob(
        shapes={name: one.shape for name, one in tensors.items()},
        itemsize=STORED_BYTES,
        rows=settings.rows,
        row_tokens=settings.max_length,
        quantization=Quantization(kind="gptq", bits=settings.bits, group_size=settings.group_size),
        device=CPU if config.hardware.gpu == CPU else "cuda",
    )


def _text(forecast: GptqForecast) -> str:
    on_gpu = f"{gib(forecast.device_bytes):.2f} GiB of GPU memory, " if forecast.device else ""
    return (
        f"{STEP}: at most {on_gpu}{gib(forecast.host_bytes):.2f} GiB of main memory, "
        f"{gib(forecast.disk_bytes):.2f} GiB of disk"
    )


def _lack(config: Config, forecast: GptqForecast) -> DoesNotFit | None:
    places = [("main memory", forecast.host, psutil.virtual_memory().available)]
    if forecast.device:
        places.append(("GPU memory", forecast.device, _gpu_budget(config)))
    smaller = "smaller export.gptq.rows or export.gptq.max_length"
    lacks = (lack_of_memory(STEP, uses, free, place=place, smaller=smaller) for place, uses, free in places)
    return next((lack for lack in lacks if lack is not None), None)


def _gpu_budget(config: Config) -> int:
    hardware = config.hardware
    gpu = planner.gpu(hardware.gpu)
    total = gpu.usable_gib if hardware.memory_gib is None else hardware.memory_gib - gpu.context_gib
    return int((total - hardware.in_use_gib - config.gate.margin_gib) * GIB)
