"""Whether two names, folders or hub ids, are of one model."""

from __future__ import annotations

import re
from pathlib import Path

_OUR_FOLDERS = ("merged", "adapter")
"""Folders of runs bear the same name in each: the folder above tells them apart."""
_HUB_CACHE = re.compile(r"models--[^/]+?--(?P<name>[^/]+)/snapshots/")


def same_model(left: str, right: str) -> bool:
    """Return whether two names are of one model: folders that are the same, or the same last name."""
    if left == right:
        return True
    if Path(left).exists() and Path(right).exists():
        return Path(left).resolve() == Path(right).resolve()
    return _short(left) == _short(right)


def _short(name: str) -> str:
    cached = _HUB_CACHE.search(name)
    parts = [cached["name"]] if cached else Path(name).parts
    return "/".join(parts[-2:] if parts and parts[-1] in _OUR_FOLDERS else parts[-1:]).lower()
