"""Files by which a driver of Ray and those who look at its sweep hear of each other, on whatever machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.runs.files import disk_errors, read_json
from llmsys_exp.sweeps.folder import SweepPaths


def driver_file(paths: SweepPaths) -> Path:
    """Return the file that says which process drives the sweep and where its cluster is."""
    return paths.folder / "ray" / "driver.json"


def cancel_file(paths: SweepPaths) -> Path:
    """Return the file whose presence asks the driver to stop."""
    return paths.folder / "ray" / "cancel"


def driver_of(paths: SweepPaths) -> dict[str, Any] | None:
    """Return what the newest driver said of itself; None where there was none."""
    found = read_json(driver_file(paths))
    return found if isinstance(found, dict) else None


def is_driver(paths: SweepPaths, runner: int) -> bool:
    """Whether the process that runs a sweep is one that drives it on Ray."""
    driver = driver_of(paths)
    return driver is not None and driver.get("pid") == runner


def ask_driver(paths: SweepPaths) -> None:
    """Ask the driver to stop.

    Raises:
        UserError: when the folder cannot be written to.
    """
    with disk_errors(cancel_file(paths)):
        cancel_file(paths).touch()
