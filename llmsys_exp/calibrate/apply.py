"""What a plan takes over from the calibration of this machine; the planner gets it as data of the job."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from llmsys_exp.errors import UserError
from planner.tables import CPU
from planner.training_case import Calibration

if TYPE_CHECKING:
    from llmsys_exp.calibrate.entry import Entry

VARIABLE = "LLMSYS_CALIBRATION"
FLAG = "--no-calibration"
OFF, ON = "off", "on"
PREFIX = "Calibrated on this machine"
_is_left_aside = False


def leave_aside() -> None:
    """Plan without the calibration from here on: runs that are done again are planned as they were."""
    global _is_left_aside  # noqa: PLW0603 - of this process, as the command line is
    _is_left_aside = True


def calibration_of(gpu: str, *, dtype: str, ranks: int) -> Calibration | None:
    """Return what was measured on this machine of the device that is planned for; None where nothing was.

    Args:
        gpu: row of the planner's table, or `cpu`.
        dtype: that the job computes in.
        ranks: of the job.

    Raises:
        UserError: when the file of calibrations cannot be read, or the variable says neither on nor off.
    """
    if _is_left_aside or not _is_on():
        return None
    from llmsys_exp.calibrate.store import calibration_file

    try:
        file = calibration_file()
        time = file.stat().st_mtime_ns
    except (OSError, UserError):  # no such file, or a user without a home
        return None
    entry = _entry(file, time, gpu)
    return None if entry is None else _taken(entry, dtype, ranks)


def _is_on() -> bool:
    said = os.environ.get(VARIABLE, ON)
    if said not in (ON, OFF, ""):
        raise UserError(f"{VARIABLE} is {said!r}", do=f"Set it to {OFF} or {ON}, or leave it out")
    return said != OFF


@lru_cache(maxsize=32)
def _entry(file: Path, time: int, gpu: str) -> Entry | None:
    """The entry of a device that is here now; `time` says which state of the file was read."""
    from llmsys_exp.calibrate.store import read_entries

    entries = {key: one for key, one in read_entries(file).items() if one.kind == gpu}
    if not entries:
        return None
    from llmsys_exp.calibrate.device import devices_here

    here = {device.key for device in devices_here()}
    return next((one for key, one in entries.items() if key in here), None)


def _taken(entry: Entry, dtype: str, ranks: int) -> Calibration | None:
    constants = {name: one.value for name, one in entry.constants.items() if one.is_used}
    if ranks == 1:
        constants.pop("nccl_gib", None)
    figure = None if entry.kind == CPU and ranks > 1 else entry.speed.get(dtype)
    speed = figure.value if figure is not None and figure.is_used else None
    if not constants and speed is None:
        return None
    told = [
        f"{name.removesuffix('_gib').replace('_', ' ')} {value:.2f} GiB" for name, value in constants.items()
    ]
    if figure is not None and speed is not None:
        told.append(f"seconds of a step x {speed:.2f} ({dtype}; {figure.low:.2f} to {figure.high:.2f})")
    source = f"{PREFIX} on {entry.date} from {_count(entry)}: {', '.join(told)}"
    return Calibration(**constants, speed_factor=speed, source=source)


def _count(entry: Entry) -> str:
    return "1 run" if len(entry.runs) == 1 else f"{len(entry.runs)} runs"
