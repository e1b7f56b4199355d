"""Configurations and logs of other tools, read as data: never run, and nothing dropped unsaid."""

from __future__ import annotations

from llmsys_exp.importers.imported import Imported, Unmapped
from llmsys_exp.importers.logs import LoggedRun, read_log
from llmsys_exp.importers.registry import FORMATS, read

__all__ = ["FORMATS", "Imported", "LoggedRun", "Unmapped", "read", "read_log"]
