"""Losses that other tools logged, in one form."""

from __future__ import annotations

from llmsys_exp.importers.logs.logged import LoggedRun
from llmsys_exp.importers.logs.reading import LOGS, read_log

__all__ = ["LOGS", "LoggedRun", "read_log"]
