"""What a worker is told: `job.json`, read without Hydra or OmegaConf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import UserError
from llmsys_exp.runs.paths import RunPaths

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Resolved:
    """Facts the parent has settled, all paths absolute."""

    model_folder: Path | None
    train_file: Path | None
    heldout_file: Path | None
    prompts_file: Path | None
    world_size: int
    device: str
    adapter_folder: Path | None = None
    """A trained adapter that is served over `model_folder`."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Resolved:
        """Read the `resolved` part of `job.json`."""

        def path(key: str) -> Path | None:
            return Path(data[key]) if data.get(key) else None

        return cls(
            model_folder=path("model_folder"),
            train_file=path("train_file"),
            heldout_file=path("heldout_file"),
            prompts_file=path("prompts_file"),
            world_size=int(data.get("world_size", 1)),
            device=str(data.get("device", "cpu")),
            adapter_folder=path("adapter_folder"),
        )


@dataclass(frozen=True)
class Job:
    """One run folder and everything in its `job.json`."""

    config: Config
    plan: dict[str, Any]
    resolved: Resolved
    paths: RunPaths
    serving: dict[str, Any] | None = None
    """How an inference engine is started, where one is started: see docs/design/worker-protocol.md."""
    engine_key: str = ""
    """Changes with anything that a start of the engine depends on."""

    @property
    def model_source(self) -> str:
        """What transformers loads from: the local folder, else the hub id."""
        return str(self.resolved.model_folder or self.config.model.id)


def load_export_job(folder: Path) -> Job:
    """Read what the last `llmsys export` asked for, else `job.json`."""
    return load_job(folder, file=RunPaths(folder).export_job.name)


def load_job(folder: Path, *, file: str | None = None) -> Job:
    """Read and check `job.json` of a run folder, or a file in its place if there is one."""
    paths = RunPaths(folder.resolve())
    asked = paths.folder / file if file is not None else paths.job
    try:
        data = json.loads((asked if asked.is_file() else paths.job).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            "There is no job.json", where=str(folder), do="Give a run folder that llmsys has made"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(
            "job.json is not valid JSON", where=f"{paths.job}:{error.lineno}", why=error.msg
        ) from None
    if data.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"job.json has schema version {data.get('schema_version')!r}, this worker reads {SCHEMA_VERSION}",
            where=str(paths.job),
            do="Use the llmsys that made the run folder",
        )
    return Job(
        config=from_plain(data["config"]),
        plan=dict(data.get("plan") or {}),
        resolved=Resolved.from_dict(data["resolved"]),
        paths=paths,
        serving=data.get("serving"),
        engine_key=str(data.get("engine_key", "")),
    )


def settled(value: Any, key: str) -> Any:
    """Return a setting's value, which must not be `auto` any more."""
    if value == AUTO or getattr(value, "name", "") == AUTO:
        raise UserError(
            f"{key} is still auto",
            where="job.json",
            why="A worker does not plan",
            do=f"Start the run through llmsys, or give {key} a value",
        )
    return value


def folder_argument(arguments: list[str], *, worker: str) -> Path:
    """Return the one argument of a worker: its run folder."""
    folders = [one for one in arguments if not one.startswith("--local_rank")]
    if len(folders) != 1:
        raise UserError(f"Usage: python -m llmsys_exp.workers.{worker} RUN_FOLDER")
    return Path(folders[0])
