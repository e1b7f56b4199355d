"""Mirrors of metrics.jsonl for those who watch runs elsewhere: TensorBoard, Weights & Biases, MLflow.

All write below the run folder and need no network: W&B runs offline unless WANDB_MODE says otherwise, MLflow
keeps a SQLite file unless MLFLOW_TRACKING_URI names a server. A mirror that fails is given up with one note:
training never stops for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Mirror
from llmsys_exp.workers import events
from llmsys_exp.workers.job import Job


class Tracker(Protocol):
    """Gets the figures of each logged step."""

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Pass on the numbers among `figures`."""
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Pass on the result of the run and close what is open."""
        ...


def make_trackers(job: Job) -> list[Tracker]:
    """Open the mirrors of a job; call it on rank 0 alone."""
    return [_Guarded(mirror.value, lambda mirror=mirror: _OPEN[mirror](job)) for mirror in _asked(job)]


def numbers(figures: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a nested mapping under names such as `evaluation/after/loss`."""
    found: dict[str, float] = {}
    for key, value in figures.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found


def _asked(job: Job) -> list[Mirror]:
    return list(dict.fromkeys(job.config.tracking.mirrors))


class _Guarded:
    """A tracker that is dropped at its first failure."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        self._tracker = self._try(make)

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Pass on, if the mirror still works."""
        tracker = self._tracker
        if tracker is not None:
            self._try(lambda: tracker.log(step, figures))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Pass on, if the mirror still works."""
        tracker = self._tracker
        if tracker is not None:
            self._try(lambda: tracker.finish(summary))

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # a mirror may fail in any way, and training goes on
            self._tracker = None
            first = (str(error).splitlines() or [""])[0]
            events.note(f"{self._name} gets no further figures: {type(error).__name__}: {first}")
            return None


class _TensorBoard:
    def __init__(self, job: Job) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(job.paths.tensorboard))
        self._writer.add_text("configuration", _as_markdown(to_plain(job.config)))

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        for name, value in numbers(figures).items():
            self._writer.add_scalar(name, value, step)
        # a run may be killed at any step
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._writer.add_text("result", _as_markdown(numbers(summary)))
        self._writer.close()


class _Wandb:
    def __init__(self, job: Job) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._run = wandb.init(
            project=job.config.tracking.project,
            name=f"{job.config.name}/{job.paths.folder.name}",
            dir=str(job.paths.folder),
            config=to_plain(job.config),
            # the ranks share a pipe and one log, which is ours
            settings=wandb.Settings(console="off", disable_git=True),
        )

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        self._run.log(numbers(figures), step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(numbers(summary))
        self._run.finish()


class _Mlflow:
    def __init__(self, job: Job) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            job.paths.mlflow.mkdir(exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{job.paths.mlflow / 'mlflow.db'}")
        self._client = mlflow.MlflowClient()
        project = job.config.tracking.project
        experiment = self._client.get_experiment_by_name(project)
        if experiment is None:
            artifacts = (job.paths.mlflow / "artifacts").as_uri()
            number = self._client.create_experiment(project, artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        run = self._client.create_run(number, run_name=f"{job.config.name}/{job.paths.folder.name}")
        self._run = run.info.run_id
        self._client.log_dict(self._run, to_plain(job.config), "config.json")

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, step) for name, value in numbers(figures).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._client.log_dict(self._run, numbers(summary), "result.json")
        self._client.set_terminated(self._run)


_OPEN: dict[Mirror, Callable[[Job], Tracker]] = {
    Mirror.tensorboard: _TensorBoard,
    Mirror.wandb: _Wandb,
    Mirror.mlflow: _Mlflow,
}


def _as_markdown(content: Mapping[str, Any]) -> str:
    return "\n".join(f"    {key}: {value}" for key, value in content.items())
