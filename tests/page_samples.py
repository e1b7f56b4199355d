"""Run folders and sweeps as files, for tests of what is made of them: nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.runs.manifest import EMPTY, sealed
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, RUNNING
from llmsys_exp.sweeps.points.point import Point

GIB = 1 << 30
EVIL = "<script>document.title='owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"
OPTIONS = {"jobs": None, "timeout_s": None, "fail_fast": False, "pack": False, "slurm": None}


def manifest(loss: float, *, name: str = "sample", peak_gib: float = 10.5, **more: Any) -> dict[str, Any]:
    """Return a manifest of a training run with the figures that pages show."""
    content = deepcopy(dict(EMPTY))
    config = to_plain(Config())
    train = {
        "steps": 4,
        "tokens": 4000,
        "seconds": 2.0,
        "tokens_per_s": 2000.0,
        "loss": {"first": 3.0, "last": loss + 0.1},
        "evaluation": {"before": {"loss": 3.1}, "after": {"loss": loss, "score": 0.5, "score_name": "f1"}},
        "memory_per_rank": [{"phases": [{"phase": "model loaded", "peak_allocated_bytes": 2 * GIB}]}],
    }
    content |= {
        "id": f"{name}/x",
        "name": name,
        "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:01:00+00:00",
        "command": ["llmsys", "train", f"name={name}"],
        "overrides": ["training.micro_batch=2"],
        "config": config | {"name": name, "steps": ["train"]},
        "choices": [
            {"key": "zero.stage", "value": 2, "reason": "fastest of 4 that fit", "given": False},
            {"key": "training.micro_batch", "value": 2, "reason": "set by you", "given": True},
        ],
        "forecast": {
            "required_gib": 10.0,
            "host_peak_gib": 4.0,
            "tier": "formula",
            "components": {"weights": 6.0, "activations": 4.0},
            "phases": {"load": 1.5, "forward 1": 9.0},
            "host": {"processes": 4.0},
            "disk": {"result": 0.5},
            "bands": {"class": "measured", "rows": 3},
            "notes": [],
        },
        "verdict": {
            "fits": True,
            "label": "fits",
            "budget_gib": 16.0,
            "headroom_gib": 6.0,
            "largest": "weights",
        },
        "environment": {
            "python": "3.11",
            "packages": {"torch": "2.13.0", "peft": "0.21"},
            "variables": {"LANG": "C"},
        },
        "machine": {"cpus": 2, "gpus": [{"name": "H200", "memory_bytes": 141 * GIB}]},
        "model": {"source": "m", "files": {"model.safetensors": {"sha256": "ab" * 32, "bytes": 7}}},
        "measured": {
            "peak_bytes": int(peak_gib * GIB),
            "rows": [
                {
                    "name": "peak reserved",
                    "planned_bytes": 10 * GIB,
                    "measured_bytes": int(peak_gib * GIB),
                    "how": "x",
                },
                {
                    "name": "main memory of a node",
                    "planned_bytes": 4 * GIB,
                    "measured_bytes": 3 * GIB,
                    "how": "PSS",
                },
            ],
        },
        "metrics": train["evaluation"],
        "results": {"train": train},
        "timing_s": {"train": 2.0, "total": 3.0},
    }
    return sealed(content | more)


def sample_run(folder: Path, content: Mapping[str, Any], *, steps: int = 4) -> RunPaths:
    """Write a run folder; `steps` lines of metrics."""
    paths = RunPaths(folder)
    paths.results.mkdir(parents=True)
    paths.job.write_text(
        json.dumps({"config": content["config"], "plan": {"speed": {"tokens_per_s": 2100.0}}})
    )
    paths.manifest.write_text(json.dumps(content))
    lines = [
        {"step": step, "train/loss": 3 / step, "tokens_per_s": 2e3, "lr": 1e-3}
        for step in range(1, steps + 1)
    ]
    paths.metrics.write_text(
        "".join(json.dumps(line) + "\n" for line in [*lines, {"step": steps, "eval/loss": 1.0}])
    )
    return paths


def sample_sweep(
    outputs: Path, overrides: Sequence[Sequence[str]], *, skipped: Sequence[int] = (), **more: Any
) -> tuple[SweepPaths, Sweep]:
    """Make a sweep of which nothing has run yet."""
    points = [Point(number, f"{number:016x}", tuple(own)) for number, own in enumerate(overrides, 1)]
    forecasts = [_forecast(point.number in skipped) for point in points]
    base = ["experiment=sample", "data.max_length=96"]
    return create_sweep(
        outputs, "sample", "train", base=base, points=points, options=OPTIONS, forecasts=forecasts, **more
    )


def end_point(
    paths: SweepPaths, sweep: Sweep, number: int, content: Mapping[str, Any] | None, **told: Any
) -> Path:
    """Let a point have run: to its end where there is a manifest, else to a failure that `told` describes."""
    folder = paths.folder.parent / f"run-{number}"
    sample_run(folder, content or manifest(2.0))
    ledger = sweep.ledger(paths)
    ledger.move(number, RUNNING, pid=1, born=1, host="elsewhere", boot="x", folder=str(folder))
    if content is None:
        RunPaths(folder).manifest.unlink()
        ledger.move(number, FAILED, attempt=1, seconds=3.0, **{"kind": "other", "what": "", **told})
    else:
        ledger.move(number, DONE, attempt=1, seconds=3.0)
    return folder


def _forecast(skipped: bool) -> dict[str, Any]:
    figures = {"label": "fits", "where": "gpu", "needed_gib": 10.0, "limit_gib": 16.0, "tier": "estimate"}
    if not skipped:
        return {"verdict": "runs", "reason": None, "figures": figures, "fix": None, "filled_from": None}
    fix = "training.micro_batch=1 training.grad_accum=2 (needs about 9.0 GiB)"
    figures |= {"label": "does not fit", "needed_gib": 20.0}
    reason = f"needs 20.0 GiB, and a rank has 16.0 GiB for it; fits with {fix}"
    return {"verdict": "skipped", "reason": reason, "figures": figures, "fix": fix, "filled_from": None}
