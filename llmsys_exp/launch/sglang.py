"""Which SGLang an interpreter has, looked up without importing it: that takes many seconds and a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError

KERNELS = ("sglang-kernel", "sgl-kernel")
"""The wheel with the compiled kernels; early releases called it by the second name."""
PACKAGES = ("sglang", *KERNELS, "torch", "transformers", "flashinfer-python")
MODULES = {
    "sglang": "sglang",
    **dict.fromkeys(KERNELS, "sgl_kernel"),
    "torch": "torch",
    "transformers": "transformers",
    "flashinfer-python": "flashinfer",
}
"""Package -> module by which it is found where its metadata is missing: unpacked wheels on PYTHONPATH."""
UNKNOWN = "unknown"
PROBE_TIMEOUT_S = 60.0
_PROBE = """
import json, sys
from importlib import metadata
from importlib.util import find_spec

found = {}
for name, module in json.loads(sys.argv[1]).items():
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        if find_spec(module) is not None:
            found[name] = "unknown"
print(json.dumps(found))
"""


def versions_in(python: str, names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the version of each package that an interpreter has; those that it lacks are left out.

    Raises:
        UserError: when it does not run.
    """
    modules = json.dumps({name: MODULES[name] for name in names})
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, modules],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python} does not run", why=str(error)) from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it does not start"]
        raise UserError(f"{python} does not work: {last[0]}")
    try:
        return dict(json.loads(done.stdout))
    except (ValueError, TypeError):  # a program that takes any argument and says something else, or nothing
        raise UserError(f"{python} is not a Python interpreter") from None


def sglang_version(python: str) -> str | None:
    """Return the version of SGLang that an interpreter has; None where it has none, or none is known."""
    try:
        found = versions_in(python, ["sglang"]).get("sglang", UNKNOWN)
    except UserError:
        return None
    return None if found == UNKNOWN else found


def chosen_python(config: Config) -> str:
    """Return the interpreter that would run SGLang, whether it is there or not."""
    chosen = config.inference.sglang.python or config.launcher.python
    return sys.executable if chosen is None else str(Path(chosen).expanduser().absolute())
