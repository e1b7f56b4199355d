"""The manifests that a command line names: of runs, of a folder of runs, of the points of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.browse.named import named_file
from llmsys_exp.browse.points import run_folders
from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.find import is_sweep
from llmsys_exp.runs.listing import find_runs
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.sweeps.folder import open_sweep


def manifests(texts: Sequence[str], outputs: Path) -> list[Path]:
    """Return the manifests of complete runs, each once.

    Raises:
        UserError: for one that is not there, or when there is none.
    """
    found = dict.fromkeys(file.resolve() for text in texts for file in _of(text, outputs))
    if not found:
        raise UserError(
            "There is no complete run here",
            where=" ".join(texts),
            do="llmsys runs lists them; only a run that is complete has a manifest",
        )
    return list(found)


def _of(text: str, outputs: Path) -> list[Path]:
    folder = Path(text).expanduser()
    if folder.is_dir() and not RunPaths(folder).job.is_file() and not (folder / "sweep.json").is_file():
        return [run.paths.manifest for run in find_runs(folder) if run.paths.manifest.is_file()]
    file = named_file(text, outputs)
    if is_sweep(file):
        folders = run_folders(*open_sweep(file.parent))
        return [one for one in (RunPaths(folder).manifest for folder in folders) if one.is_file()]
    if file.name != "manifest.json" and RunPaths(file.parent).job.is_file():
        raise UserError("This run is not complete, so it has no manifest", where=text, do="llmsys runs")
    return [file]
