"""report.html of a run that has just ended: made where that is possible, and never in the way of the run."""

from __future__ import annotations

from importlib.util import find_spec

from llmsys_exp.report.pages.layout import NEEDS, write_page
from llmsys_exp.runs.paths import RunPaths


def write_run_page(paths: RunPaths) -> list[str]:
    """Write report.html into the folder of a complete run; return notes about what went wrong.

    Without the package for pages there is none, and nothing is said: `llmsys report` tells who asks.
    """
    if find_spec(NEEDS) is None or not paths.manifest.is_file():
        return []
    from llmsys_exp.report.pages.run_page import run_page
    from llmsys_exp.runs.told import read_told

    try:
        write_page(paths.report, run_page(read_told(paths.folder)))
    except Exception as error:  # the run is done and recorded; a page can be made later
        return [f"No {paths.report.name}: {type(error).__name__}: {error}"]
    return []
