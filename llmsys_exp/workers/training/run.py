"""One training job from its data, or from a checkpoint, to its results file."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from llmsys_exp.runs.checkpoints import Checkpoint
from llmsys_exp.workers import events
from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.tasks import make_task
from llmsys_exp.workers.training.agreement import facts_of
from llmsys_exp.workers.training.bad_steps import judge, leave_out_bad_steps
from llmsys_exp.workers.training.checkpoints import Checkpoints
from llmsys_exp.workers.training.early_stop import note_evaluation, should_stop
from llmsys_exp.workers.training.engine import check_batch_sizes, end_gathering, start_engine
from llmsys_exp.workers.training.history import cut_back
from llmsys_exp.workers.training.loop import StepReport, Trainer
from llmsys_exp.workers.training.memory import MemoryMeter
from llmsys_exp.workers.training.metrics import Metrics
from llmsys_exp.workers.training.preemption import Stopped, StopRequest
from llmsys_exp.workers.training.progress import Progress
from llmsys_exp.workers.training.speed import SpeedMeter
from llmsys_exp.workers.training.summary import shown_figures, summary_of
from llmsys_exp.workers.training.universal import LOADS_UNIVERSAL, convert, needs_conversion


class TrainingRun:
    """Load, evaluate, train, evaluate again, save; from the newest checkpoint where there is one."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks, self._config = job, ranks, job.config
        training = job.config.training
        events.phase("read data")
        self._task = make_task(job, ranks)
        self._order = Order(
            count=len(self._task.examples),
            micro_batch=settled(training.micro_batch, "training.micro_batch"),
            grad_accum=settled(training.grad_accum, "training.grad_accum"),
            world_size=ranks.world_size,
            seed=job.config.seed,
            lengths=self._task.examples.lengths if job.config.data.group_by_length else None,
        )
        self._steps = self._order.steps(epochs=training.epochs, max_steps=training.max_steps)
        self._ds_config = json.loads(job.paths.ds_config.read_text(encoding="utf-8"))
        check_batch_sizes(self._ds_config, self._order)
        facts = facts_of(
            job.config, global_batch=self._order.global_batch, fingerprint=self._task.fingerprint
        )
        self._checkpoints = Checkpoints(job, ranks, facts=facts)
        self._progress = Progress()
        self._evaluated: tuple[int, dict[str, Any] | None] = -1, None

    def run(self) -> None:
        """Do all of it; the results file is written last."""
        began = time.monotonic()
        self._memory = MemoryMeter(self._ranks.device)
        self._speed = SpeedMeter(
            self._job.plan,
            world_size=self._ranks.world_size,
            device=self._ranks.device,
            unit=self._task.unit,
        )
        checkpoint = self._checkpoints.newest()
        engine = self._start(checkpoint)
        if self._progress.before is None:
            self._progress.before = self._evaluate(engine, "evaluate before training")
        self._train(engine)
        after = self._evaluate_at_the_end(engine)
        events.phase("save")
        end_gathering(engine)
        self._task.save(engine.module)
        memory = self._ranks.gather(self._memory.summary())
        if self._ranks.is_first:
            summary = summary_of(self._progress, self._task, engine.module, after=after)
            summary |= {"dtype": self._config.training.dtype.name, "world_size": self._ranks.world_size}
            summary |= {"speed": self._speed.summary(), "memory_per_rank": memory}
            summary["total_seconds"] = time.monotonic() - began
            write_json(self._job.paths.result("train"), summary)
            self._metrics.finish(summary)

    def _start(self, checkpoint: Checkpoint | None) -> Any:
        events.phase("load model")
        model = self._task.build()
        self._memory.record("model loaded")
        folder, ds_config = None if checkpoint is None else checkpoint.folder, self._ds_config
        if checkpoint and needs_conversion(checkpoint.state, world_size=self._ranks.world_size):
            folder, ds_config = convert(checkpoint, ranks=self._ranks), {**ds_config, **LOADS_UNIVERSAL}
        events.phase("start engine")
        engine = start_engine(model, ds_config, self._config.training, steps=self._steps)
        if self._config.training.bad_steps_allowed:
            leave_out_bad_steps(engine)
        self._memory.record("engine started")
        if checkpoint is not None:
            events.phase(f"load {checkpoint.folder.name}")
            self._progress = self._checkpoints.load(engine, checkpoint, folder=folder)
            self._memory.record("checkpoint loaded")
        if self._ranks.is_first:
            cut_back(self._job.paths.metrics, self._job.paths.dropped_metrics, step=self._progress.step)
        return engine

    def _train(self, engine: Any) -> None:
        events.phase("train")
        self._metrics = metrics = Metrics(
            self._job, self._memory, steps=self._steps, speed=self._speed, writes=self._ranks.is_first
        )
        with metrics, StopRequest(enabled=self._config.checkpoint.on_signal) as request:
            trainer = Trainer(
                engine,
                self._task,
                self._order,
                ranks=self._ranks,
                memory=self._memory,
                wants_stop=lambda: request.requested,
            )
            if self._is_evaluation_due() and self._progress.evaluated_at != self._progress.step:
                # a run that was told to stop saved at once
                self._evaluate_midway(engine, metrics)
            self._progress.stopped_early = self._waited_enough()
            if not self._progress.stopped_early:
                for report in trainer.steps(self._progress.step, self._steps):
                    self._enter(report, metrics)
                    if report.stop:
                        self._save_and_stop(engine)
                    if self._end_of_step(engine, metrics):
                        break
            if self._config.checkpoint.every is not None:
                # a run that is extended later goes on from its end
                self._save(engine)
        self._memory.record("after last step")

    def _enter(self, report: StepReport, metrics: Metrics) -> None:
        """Count a step, and end the run when it was one bad step too many."""
        training, progress = self._config.training, self._progress
        judge(report, progress, dtype=training.dtype, allowed=training.bad_steps_allowed)
        progress.step = report.step
        progress.tokens += report.tokens
        progress.seconds += report.seconds
        progress.last_loss = report.loss
        if progress.first_step is None:
            progress.first_step = asdict(report)
        metrics.write(report)

    def _end_of_step(self, engine: Any, metrics: Metrics) -> bool:
        """Evaluate and save where it is time to; return whether the run is to end."""
        settings, step, best = self._config.checkpoint, self._progress.step, False
        if self._is_evaluation_due():
            best = self._evaluate_midway(engine, metrics)
        if self._waited_enough():
            self._progress.stopped_early = True
            events.note(
                f"stopped early after step {step}: {self._progress.waited} evaluations in a row brought no "
                f"held-out loss clearly below {self._progress.to_beat}"
            )
            return True
        due = settings.every is not None and step % settings.every == 0
        if due or (best and settings.keep_best):
            self._save(engine)
        return False

    def _is_evaluation_due(self) -> bool:
        every, step = self._config.training.evaluate_every, self._progress.step
        return bool(every and step and (step % every == 0 or step == self._steps))

    def _evaluate_midway(self, engine: Any, metrics: Metrics) -> bool:
        """Measure on held-out rows, note it, and return whether the loss is the best so far."""
        # the allocator tells its peak since the last record; counting tensors on the CPU would only take long
        on_gpu = self._ranks.device.type == "cuda"
        if on_gpu:
            # or the peak of the steps before would count as the evaluation's
            self._memory.record(f"step {self._progress.step}")
        figures = self._evaluate(engine, "evaluate in mid-training", record=on_gpu)
        if figures is None:
            return False
        self._evaluated = self._progress.step, figures
        shown = {f"eval/{key}": value for key, value in figures.items() if isinstance(value, (int, float))}
        metrics.write_line({"step": self._progress.step, **shown})
        events.phase("train")
        delta = self._config.training.early_stop_min_delta
        return note_evaluation(self._progress, figures["loss"], min_delta=delta)

    def _evaluate_at_the_end(self, engine: Any) -> dict[str, Any] | None:
        step, figures = self._evaluated
        return figures if step == self._progress.step else self._evaluate(engine, "evaluate after training")

    def _waited_enough(self) -> bool:
        return should_stop(self._progress, patience=self._config.training.early_stop_patience)

    def _save(self, engine: Any) -> bool:
        if self._checkpoints.has(self._progress.step):
            return True
        events.phase(f"checkpoint after step {self._progress.step}")
        saved = self._checkpoints.save(engine, self._progress)
        events.phase("train")
        return saved

    def _save_and_stop(self, engine: Any) -> None:
        folder = self._job.paths.folder
        saved = self._save(engine)
        # a rank that ends early makes the launcher end the others, rank 0 amid its last file
        self._ranks.gather(None)
        raise Stopped(
            f"Stopped on request after step {self._progress.step} of {self._steps}"
            + ("; a checkpoint is there" if saved else "; no checkpoint could be written"),
            kind="stopped",
            do=f"Go on with `llmsys train resume={folder}`",
        )

    def _evaluate(self, engine: Any, name: str, *, record: bool = True) -> dict[str, Any] | None:
        if not self._task.heldout:
            return None
        events.phase(name)
        figures = self._task.evaluate(engine.module, name)
        if record:
            self._memory.record(name)
        at = f" (step {self._progress.step})" if self._progress.step else ""
        events.result(f"{name}{at}", **shown_figures(figures))
        return figures
