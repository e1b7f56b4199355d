"""The run that is meant: a folder, its manifest, an id NAME/FOLDER, `latest`, or `latest~1` before it."""

from __future__ import annotations

from pathlib import Path

from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.find import find_run, latest_folder
from llmsys_exp.runs.paths import RunPaths


def named_file(text: str, outputs: Path) -> Path:
    """Return the file that tells most of a run, or sweep.json; of a run that was killed early, job.json.

    Args:
        text: what the user wrote.
        outputs: where ids and `latest` are looked up.

    Raises:
        UserError: when there is none.
    """
    folder = latest_folder(text, outputs)
    if folder is None:
        places = (Path(text).expanduser(), outputs / text)
        folder = next((one for one in places if RunPaths(one).job.is_file()), None)
    if folder is None:
        return find_run(text, outputs)
    paths = RunPaths(folder.absolute())
    return next((one for one in (paths.manifest, paths.start) if one.is_file()), paths.job)


def named_folder(text: str, outputs: Path) -> Path:
    """Return the folder of a run that is named.

    Raises:
        UserError: when there is none, or what is named is a manifest that lies alone.
    """
    folder = named_file(text, outputs).parent
    if not RunPaths(folder).is_run:
        why = "It holds neither job.json nor start.json"
        raise UserError("This is not a run folder", where=text, why=why)
    return folder
