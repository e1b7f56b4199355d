"""What an interpreter has installed; also run as a script by interpreters that lack our packages.

Only the standard library, and nothing is imported that is asked about.
"""

import json
import platform
import re
import sys
from importlib import metadata, util
from pathlib import Path

_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)
_HEADER = re.compile(r"^(Name|Version): *(\S+)", re.MULTILINE)
_NCCL = re.compile(r"nvidia-nccl-cu\d+")


def look() -> "dict[str, object]":
    """Return version and packages of the running interpreter, and which CUDA and NCCL its torch brings."""
    packages = _packages()
    nccl = [version for name, version in packages.items() if _NCCL.fullmatch(name)]
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages,
        "cuda": _cuda_of_torch(),
        "nccl": nccl[0] if nccl else None,
    }


def _packages() -> "dict[str, str]":
    found: dict[str, str] = {}
    for one in metadata.distributions():
        # a broken installation has folders without name or version
        named = dict(_HEADER.findall(_header(one)))
        if len(named) == 2:
            name = re.sub(r"[-_.]+", "-", named["Name"]).lower()
            found.setdefault(name, named["Version"])  # the first on the path is what is imported
    return dict(sorted(found.items()))


def _header(one: metadata.Distribution) -> str:
    """Only the lines before the description: to parse all of it as mail takes ten times as long."""
    return (one.read_text("METADATA") or one.read_text("PKG-INFO") or "").partition("\n\n")[0]


def _cuda_of_torch() -> "str | None":
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        match = _CUDA.search((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match else None


if __name__ == "__main__":
    print(json.dumps(look()))  # noqa: T201
