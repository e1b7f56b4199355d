"""Prints the two commands that the README promises, one a line: the demo, then the tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def commands(text: str) -> list[str]:
    """The `make` commands of the README's first shell block, without comments."""
    block = re.search(r"```(?:sh|bash)\n(.*?)```", text, flags=re.DOTALL)
    if block is None:
        raise SystemExit("README.md has no shell block")
    lines = (line.split("#")[0].strip() for line in block.group(1).splitlines())
    return [line for line in lines if line.startswith("make ")]


if __name__ == "__main__":
    sys.stdout.write("\n".join(commands(README.read_text(encoding="utf-8"))) + "\n")
