"""What was done with a run after its end: exports and quantising, added to its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.runs.files import read_json, write_json
from llmsys_exp.runs.manifest import SEAL, is_edited, sealed
from llmsys_exp.runs.migrate import find_manifest
from llmsys_exp.runs.paths import RunPaths


def add_later(paths: RunPaths, entry: Mapping[str, Any]) -> None:
    """Add an entry with its results to a manifest; nothing where there is none, or none that can be read.

    One that was edited by hand keeps the hash that shows it, and one of version 1 gets none: what was not
    vouched for is not vouched for by this.
    """
    manifest = find_manifest(paths.manifest)
    if manifest is None:
        return
    edited = is_edited(read_json(paths.manifest))
    seal = manifest.pop(SEAL, None)
    results = {**manifest["results"], **entry["results"]}
    content = sealed({**manifest, "results": results, "later": [*manifest["later"], dict(entry)]})
    write_json(paths.manifest, content if edited is False else {**content, SEAL: seal})
