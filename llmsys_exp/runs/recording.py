"""The record of a run from its launch to its end: start.json before the worker starts, manifest.json last.

A piece of evidence that cannot be had is null, with a note, and stops nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from llmsys_exp.evidence.energy import EnergyMeter
from llmsys_exp.evidence.errors import noted
from llmsys_exp.evidence.gather import Gathering, Sources
from llmsys_exp.evidence.packages import packages_hash
from llmsys_exp.evidence.run_files import RunFiles
from llmsys_exp.evidence.secrets import arguments_without_secrets, without_secrets
from llmsys_exp.evidence.told import tokens_of
from llmsys_exp.plan import plan_to_dict
from llmsys_exp.runs.checkpoints import describe_files
from llmsys_exp.runs.facts import Asked, Finished
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.manifest import sealed, utc_now
from llmsys_exp.runs.measured import MemoryRow
from llmsys_exp.runs.migrate import find_manifest, run_id
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.record import worker_settings

START_WAIT_S = 15.0
"""How long a start waits for evidence; a piece that takes longer is in the manifest alone."""
HASH_WAIT_S = 120.0
"""How long the end of a run waits for the hashes of its files."""


class Recording:
    """Keeps the record of one run; a context manager around its workers."""

    def __init__(self, paths: RunPaths, asked: Asked, *, start_file: Path | None = None) -> None:
        """Describe the record; nothing is written yet.

        Args:
            paths: of the run folder.
            asked: what is known of the run.
            start_file: where the launch of something later goes, such as an export. None: this is the run.
        """
        self._paths, self._asked = paths, asked
        self._file, self._is_run = start_file or paths.start, start_file is None
        self._notes: list[str] = []
        self._writing, self._ended = threading.Lock(), False
        self._earlier: dict[str, Any] | None = None
        self._began = ""
        self._files = RunFiles(asked.config, asked.inputs, self._write_start_again)
        self._meter = EnergyMeter(asked.gpus)

    def __enter__(self) -> Recording:
        """Gather what is known and write the record of the launch."""
        self._began = utc_now()
        self._earlier = find_manifest(self._file) if self._is_run else None
        self._gathering = Gathering(self._sources())
        try:
            self._look()
            self._gathering.wait(START_WAIT_S)
            self._write_start()
        except BaseException:
            self.__exit__()
            raise
        if self._asked.inputs.get("device") == "cuda":
            noted(self._notes, "energy", self._watch_energy, None)
        return self

    def __exit__(self, *_: object) -> None:
        with self._writing:
            self._ended = True
        self._files.close()
        with suppress(Exception):
            self._meter.stop()

    def files_made(self) -> None:
        """Look for files again: the model of `model.package` is made after the launch was recorded."""
        if self._look():
            self._write_start()

    @property
    def is_hashing(self) -> bool:
        """Whether large files are not hashed yet, so that `manifest` will wait for them."""
        return self._files.is_hashing

    def manifest(self, done: Finished) -> dict[str, Any]:
        """Return the whole record of a run whose steps are done; wait for what is still being gathered."""
        energy = noted(self._notes, "energy", self._meter.stop, None)
        self._gathering.wait(START_WAIT_S)
        self._files.finish(HASH_WAIT_S)
        with self._writing:
            self._ended = True
        outcome = {
            "finished": utc_now(),
            "measured": _measured(done.memory),
            "metrics": done.results.get("train", {}).get("evaluation") or {},
            "results": dict(done.results),
            "records": noted(self._notes, "records", lambda: record_hashes(self._paths), {}),
            "attempts": [dict(attempt) for attempt in done.attempts],
            "timing_s": {name: round(seconds, 2) for name, seconds in done.timing_s.items()},
            "tokens": tokens_of(done.results),
            "energy_wh": None if energy is None else energy["wh"],
            "energy": energy,
        }
        return sealed(self._known(done.asked, done.results) | outcome)

    def later(self, what: str, results: Mapping[str, Any], timing_s: Mapping[str, float]) -> dict[str, Any]:
        """Return the entry of `later` for what was done with a run after its end."""
        energy = noted(self._notes, "energy", self._meter.stop, None)
        self._gathering.wait(START_WAIT_S)
        return {
            "what": what,
            **self._start(self._gathering.facts()),
            "finished": utc_now(),
            "results": dict(results),
            "timing_s": {name: round(seconds, 2) for name, seconds in timing_s.items()},
            "energy_wh": None if energy is None else energy["wh"],
            "notes": [*self._gathering.notes, *self._notes],
        }

    def _look(self) -> bool:
        return noted(self._notes, "files", self._files.look, False)

    def _watch_energy(self) -> None:
        self._meter.start()
        nodes = self._asked.config.hardware.nodes
        if nodes > 1:
            self._notes.append(f"energy: of the GPUs of this machine, and the run has {nodes}")
        if self._earlier is not None:
            self._notes.append(f"energy: of the time since the run went on at {self._began}")

    def _sources(self) -> Sources:
        asked = self._asked
        places = asked.config.paths
        ours = [Path(one).expanduser().absolute() for one in (places.outputs, places.cache)]
        return Sources(
            python=asked.python,
            others={"infer": asked.engine_python} if asked.engine_python else {},
            gpus=asked.gpus,
            env=asked.env,
            patch_file=self._paths.code_patch,
            skip=[*ours, self._paths.folder],
        )

    def _known(self, asked: Asked, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known by now, whatever comes out."""
        gathered = self._gathering.facts()
        files, notes = self._files.facts(results)
        first = self._earlier or self._first()
        plan = {"forecast": None, "verdict": None} if asked.plan is None else plan_to_dict(asked.plan)
        config = without_secrets(worker_settings(asked.config))
        return {
            "id": run_id(self._paths.folder),
            **{key: first[key] for key in ("started", "command", "overrides", "groups")},
            "name": config["name"],
            "reproduces": asked.reproduces,
            "seeds": {"run": config["seed"]},
            "config": config,
            "inputs": dict(asked.inputs),
            "choices": [vars(choice) for choice in asked.choices],
            "forecast": plan["forecast"],
            "verdict": plan["verdict"],
            "serving": asked.serving,
            **gathered,
            **files,
            "starts": [*(self._earlier or {}).get("starts", ()), self._start(gathered)],
            "notes": list(dict.fromkeys([*self._gathering.notes, *self._notes, *notes])),
        }

    def _first(self) -> dict[str, Any]:
        return {
            "started": self._began,
            "command": arguments_without_secrets(self._asked.command),
            "overrides": arguments_without_secrets(self._asked.overrides),
            "groups": noted(self._notes, "groups", lambda: group_choices(self._paths), {}),
        }

    def _start(self, gathered: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry of `starts` for this start."""
        code = gathered["code"] or {}
        return {
            "time": self._began,
            "command": arguments_without_secrets(self._asked.command),
            "overrides": arguments_without_secrets(self._asked.overrides),
            "code": {key: code.get(key) for key in ("commit", "dirty", "patch", "patch_sha256")},
            "packages_sha256": packages_hash(gathered["environment"].get("packages") or {}),
        }

    def _write_start(self) -> None:
        with self._writing:
            if not self._ended:
                write_json(self._file, sealed(self._known(self._asked, {})))

    def _write_start_again(self) -> None:
        # in a thread, and the run goes on: a full disk is told of by the run itself
        with suppress(Exception):
            self._write_start()


def _measured(memory: Sequence[MemoryRow]) -> dict[str, Any]:
    rows = [row.to_dict() for row in memory]
    return {"peak_bytes": memory[0].measured_bytes if memory else None, "rows": rows}


def missing_evidence(manifest: Mapping[str, Any]) -> list[str]:
    """Say what a record lacks, or tells of a part only, for the summary of a run."""
    return [f"record: {note}" for note in manifest["notes"]]


def record_hashes(paths: RunPaths) -> dict[str, dict[str, Any]]:
    """Return size and hash of the run's own records, so that one that is edited later is noticed."""
    files = (paths.job, paths.ds_config, paths.metrics, paths.generations)
    return describe_files(paths.folder, [one.name for one in files if one.is_file()])


def group_choices(paths: RunPaths) -> dict[str, str]:
    """Return the chosen option of each Hydra group; empty where `.hydra/hydra.yaml` is missing."""
    file = paths.hydra / "hydra.yaml"
    if not file.is_file():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    chosen = content["hydra"]["runtime"]["choices"]
    return {
        key: str(value) for key, value in chosen.items() if value is not None and not key.startswith("hydra/")
    }
