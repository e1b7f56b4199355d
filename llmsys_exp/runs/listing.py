"""Find run folders and say in one row each what came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import state_of


@dataclass(frozen=True)
class RunRow:
    """One run folder."""

    name: str
    folder: str
    state: str
    """`complete`, `running`, `stopped` or `failed (kind)`, see `runs.status`."""
    loss: float | None
    score: float | None
    peak_bytes: int | None
    seconds: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def list_runs(outputs: Path) -> list[RunRow]:
    """Return every run below `outputs`, oldest first."""
    return sorted(_rows(outputs), key=lambda row: Path(row.folder).name)


def _rows(outputs: Path) -> Iterator[RunRow]:
    for job in outputs.glob("*/*/job.json"):
        paths = RunPaths(job.parent)
        manifest = read_json(paths.manifest)
        yield _row(paths, manifest if isinstance(manifest, dict) else None)


def _row(paths: RunPaths, manifest: dict[str, Any] | None) -> RunRow:
    return RunRow(
        name=paths.folder.parent.name,
        folder=str(paths.folder),
        state=state_of(paths),
        loss=_figure(manifest, "metrics", "after", "loss"),
        score=_figure(manifest, "metrics", "after", "score"),
        peak_bytes=_figure(manifest, "measured", "peak_bytes"),
        seconds=_figure(manifest, "timing_s", "total"),
    )


def _figure(content: Any, *path: str) -> Any:
    """Follow a path of keys to a number; None where a manifest, perhaps edited by hand, has none."""
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, (int, float)) and not isinstance(content, bool) else None
