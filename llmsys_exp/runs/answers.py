"""The answers of an inference run: from the journal, in order of finishing, to a table in file order."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from llmsys_exp.runs.files import disk_errors, partial_of, read_jsonl
from llmsys_exp.runs.paths import RunPaths

NEEDS = ("pandas", "pyarrow")


def read_answers(paths: RunPaths) -> list[dict[str, Any]]:
    """Return every answer in the order of the prompt file, each prompt once: the last that was written."""
    found = {row["index"]: row for row in read_jsonl(paths.generations) if isinstance(row.get("index"), int)}
    return [found[index] for index in sorted(found)]


def write_table(paths: RunPaths) -> list[str]:
    """Write generations.parquet; return a note where a package for it is missing."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        lack = " and ".join(missing)
        return [f"No {paths.answers.name} without {lack}; {paths.generations.name} holds every answer"]
    rows = read_answers(paths)
    if not rows:
        return []
    import pandas as pd

    partial = partial_of(paths.answers)
    with disk_errors(paths.answers):
        try:
            pd.DataFrame(rows).to_parquet(partial, engine="pyarrow", index=False)
            partial.replace(paths.answers)
        finally:
            partial.unlink(missing_ok=True)
    return []
