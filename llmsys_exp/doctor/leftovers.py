"""What jobs that were killed have left: locks of torch's builder, leases, and a clock that is off."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from llmsys_exp.calibrate.apply import OFF, ON, VARIABLE
from llmsys_exp.calibrate.store import calibration_file, read_entries
from llmsys_exp.doctor.disk import places
from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.look import Look
from llmsys_exp.errors import UserError
from llmsys_exp.sweeps.running.lease import is_locked, runtime_folder

_SAY = Reporter("leftovers")
BUILD_S = 15 * 60
"""No operator of DeepSpeed takes so long to build."""
NEEDED = ("fused_adam", "cpu_adam")
"""Operators of ordinary runs; async_io is for offloading to NVMe, and others are never asked for here."""
SKEW_S = 2.0
_FIRST_YEAR = 2025


def check(look: Look) -> Iterator[Finding]:
    """Look for what stays behind and makes later jobs wait."""
    yield from _build_locks(look)
    yield from _leases()
    yield from _clock(look.outputs)
    yield from _calibration(look)


def _build_locks(look: Look) -> Iterator[Finding]:
    """Torch waits without end for a build whose lock is there (`torch/utils/file_baton.py`)."""
    folder = next(path for name, path, _ in places(look) if name == "extensions")
    now = time.time()
    locks = [*folder.glob("*/lock"), *folder.glob("*/*/lock")]
    old = []
    for lock in locks:
        try:
            if now - lock.stat().st_mtime > BUILD_S:
                old.append(lock)
        except OSError:
            continue
    if old:
        names = ", ".join(lock.parent.name for lock in old)
        said = f"Builds were killed and left locks ({names}): a job that needs one of them waits without end"
        needed = any(lock.parent.name in NEEDED for lock in old)
        yield _SAY.either(needed, "build-lock", said, f"rm {' '.join(map(str, old))}")
    elif locks:
        said = f"An operator is being built: {locks[0]}"
        yield _SAY.note("build-lock", said, f"rm {locks[0]}, if no job is running")
    else:
        yield _SAY.ok("build-lock", "No lock of torch's builder was left")


def _leases() -> Iterator[Finding]:
    folder = runtime_folder()
    holders = sorted(folder.glob("*@*"))
    held = [path.name.partition("@")[0] for path in holders if is_locked(path)]
    if held:
        yield _SAY.note("leases", f"Leased by sweeps now: {', '.join(held)}", "llmsys sweep status")
    else:
        stale = f"; {len(holders)} of jobs that are gone, which the next sweep removes" if holders else ""
        yield _SAY.ok("leases", f"No lease is held{stale}")


def _clock(outputs: Path) -> Iterator[Finding]:
    """A file server with another time makes files of now look old or yet to come."""
    if time.gmtime().tm_year < _FIRST_YEAR:
        said = f"The clock says {time.strftime('%Y-%m-%d')}"
        yield _SAY.note("clock", said, "timedatectl set-ntp true")
        return
    folder = outputs.expanduser().absolute()
    existing = next((one for one in (folder, *folder.parents) if one.is_dir()), Path("/"))
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".llmsys-clock-") as file:
            before = time.time()
            os.utime(file.name)
            skew = os.stat(file.name).st_mtime - before
    except OSError:
        return  # the check of disks says so
    if abs(skew) > SKEW_S:
        said = f"The clock of the disk under outputs is {skew:+.0f} s off this machine's"
        yield _SAY.note("clock", said, "timedatectl set-ntp true, on both")
    else:
        yield _SAY.ok("clock", "The disk under outputs has this machine's time")


def _calibration(look: Look) -> Iterator[Finding]:
    said = look.env.get(VARIABLE, ON)
    if said not in (ON, OFF, ""):
        yield _SAY.problem("calibration", f"{VARIABLE}={said} is neither {ON} nor {OFF}", f"unset {VARIABLE}")
        return
    try:
        file = calibration_file()
        entries = read_entries(file)
    except UserError as error:
        yield _SAY.problem(
            "calibration", f"{error.what} ({error.where}): {error.why}", "llmsys calibrate --remove"
        )
        return
    if entries:
        used = "left aside" if said == OFF else "used"
        yield _SAY.ok("calibration", f"Calibrated: {'; '.join(entries)} ({used})")
    else:
        yield _SAY.ok("calibration", "Not calibrated: plans use the planner's constants (llmsys calibrate)")
