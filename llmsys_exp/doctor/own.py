"""Packages of the interpreter that runs this command."""

from __future__ import annotations

from collections.abc import Mapping

from llmsys_exp.evidence.packages import installed


def own_packages() -> Mapping[str, str]:
    """Return name -> version."""
    return installed()["packages"]
