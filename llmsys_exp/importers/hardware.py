"""The GPU to plan an imported file for: no format names one, and a plan needs one."""

from __future__ import annotations

import re
import shutil
import subprocess

import planner
from llmsys_exp.config.groups import Groups

STAND_IN = "h100"
CPU = "cpu"
_LISTED = re.compile(r"^GPU \d+: (.+?) \(UUID", re.MULTILINE)


def hardware_option() -> tuple[str, str]:
    """Return an option of `hardware` and where it comes from: this machine's GPU, or a stand-in."""
    installed = _installed()
    for option in Groups.shipped().options("hardware"):
        name = option.replace("_", "-")
        if installed and name != CPU and name in planner.gpu_names() and planner.gpu(name).title == installed:
            return option, f"hardware: no GPU is named, so this machine's, {installed}"
    have = (
        f"this machine's {installed} is no row of the planner's table"
        if installed
        else "this machine has none"
    )
    return STAND_IN, f"hardware: no GPU is named, and {have}; {STAND_IN} stands in. Add hardware=NAME"


def _installed() -> str:
    """The name of the first GPU, as the driver tells it."""
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _LISTED.search(done.stdout) if done.returncode == 0 else None
    return found[1] if found else ""
