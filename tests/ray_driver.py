"""Drives a sweep on Ray with jobs that only pretend to train: `python ray_driver.py FOLDER --ray address=... [flags]`.

It is `llmsys sweep resume`, but that tasks start `sweep_standin.py`, or another program, in the place of the job.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from llmsys_exp.cli.main import main
from llmsys_exp.sweeps.ray import driver, task
from llmsys_exp.sweeps.running import start

STANDIN = os.environ.get("STANDIN", str(Path(__file__).parent / "sweep_standin.py"))


def stand_in() -> None:
    """Have the tasks of this process's sweeps start the stand-in."""
    program = STANDIN

    def run_point(folder: str, number: int, timeout_s: float | None) -> dict[str, Any]:
        real = start.job_command
        task.job_command = lambda *asked: [real(*asked)[0], program, *real(*asked)[3:]]
        return task.run_point(folder, number, timeout_s)

    driver.run_point = run_point


if __name__ == "__main__":
    stand_in()
    main(["sweep", "resume", *sys.argv[1:]])
