"""Install into this interpreter's environment with uv, which takes a third of pip's time, by pip's settings.

    .venv/bin/python scripts/uv_install.py WHAT PIP INSTALL TAKES

Ends with code 1 where uv is not to be had or pip is set up in a way that uv cannot be told: then take pip.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable

UV = "uv==0.13.9"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
TOLD = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", ""),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
}
"""Setting of pip -> variable of uv, and what stands between several values."""
HARMLESS = {"disable-pip-version-check", "no-cache-dir", "no-color", "no-input", "progress-bar", "quiet"}
HARMLESS |= {"require-virtualenv", "retries", "root-user-action"}
ORDER = ("global", "install", ":env:")
"""The later wins, as with pip."""


def uv_variables(lines: Iterable[str]) -> dict[str, str] | None:
    """Return what `pip config list` says as variables of uv; None where it says more than uv can be told."""
    found: dict[str, str] = {}
    split = [line.strip().partition("=") for line in lines if "=" in line]
    named = [(*name.rsplit(".", 1), ast.literal_eval(value)) for name, _, value in split]
    named = [one for one in named if one[0] in ORDER]
    for _, key, value in sorted(named, key=lambda one: ORDER.index(one[0])):
        if key in HARMLESS:
            continue
        if key not in TOLD:
            return None
        variable, between = TOLD[key]
        found[variable] = between.join(value.split()) if between else value
    # pip takes the best version of all places, uv by default that of the first
    return {**found, "UV_INDEX_STRATEGY": "unsafe-best-match"}


def main() -> int:
    """Entry point."""
    told = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    variables = uv_variables(told.stdout.splitlines())
    if variables is None or subprocess.run([*PIP, "install", "-qq", UV], check=False).returncode:
        return 1
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    done = subprocess.run([*command, *sys.argv[1:]], env={**os.environ, **variables}, check=False)
    return min(done.returncode, 1)


if __name__ == "__main__":
    sys.exit(main())
