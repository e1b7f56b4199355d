"""One training job from its data to its results file."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.methods.parameters import parameter_counts
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.tasks import make_task
from llmsys_exp.workers.training.checks import check_loss
from llmsys_exp.workers.training.engine import check_batch_sizes, start_engine
from llmsys_exp.workers.training.loop import StepReport, Trainer
from llmsys_exp.workers.training.memory import MemoryMeter
from llmsys_exp.workers.training.metrics import Metrics


class TrainingRun:
    """Load, evaluate, train, evaluate again, save."""

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
        )
        self._steps = self._order.steps(epochs=training.epochs, max_steps=training.max_steps)
        self._ds_config = json.loads(job.paths.ds_config.read_text(encoding="utf-8"))
        check_batch_sizes(self._ds_config, self._order)

    def run(self) -> None:
        """Do all of it; the results file is written last."""
        began = time.monotonic()
        self._memory = MemoryMeter(self._ranks.device)
        engine = self._start()
        before = self._evaluate(engine, "evaluate before training")
        events.phase("train")
        reports = self._train(engine)
        after = self._evaluate(engine, "evaluate after training")
        events.phase("save")
        self._task.save(engine.module)
        memory = self._ranks.gather(self._memory.summary())
        if self._ranks.is_first:
            summary = self._summary(engine, reports, before=before, after=after)
            summary |= {"memory_per_rank": memory, "total_seconds": time.monotonic() - began}
            write_json(self._job.paths.result("train"), summary)

    def _start(self) -> Any:
        events.phase("load model")
        model = self._task.build()
        self._memory.record("model loaded")
        events.phase("start engine")
        engine = start_engine(model, self._ds_config, self._config.training, steps=self._steps)
        self._memory.record("engine started")
        return engine

    def _train(self, engine: Any) -> list[StepReport]:
        trainer = Trainer(engine, self._task, self._order, ranks=self._ranks, memory=self._memory)
        metrics = Metrics(
            self._job.paths.metrics,
            self._memory,
            steps=self._steps,
            log_every=self._config.training.log_every,
            writes=self._ranks.is_first,
        )
        reports: list[StepReport] = []
        with metrics:
            for report in trainer.steps(0, self._steps):
                check_loss(report.loss, step=report.step)
                reports.append(report)
                metrics.write(report)
        self._memory.record("after last step")
        return reports

    def _evaluate(self, engine: Any, name: str) -> dict[str, Any] | None:
        if not self._task.heldout:
            return None
        events.phase(name)
        figures = self._task.evaluate(engine.module, name)
        self._memory.record(name)
        return figures

    def _summary(self, engine: Any, reports: list[StepReport], *, before: Any, after: Any) -> dict[str, Any]:
        tokens, seconds = sum(one.tokens for one in reports), sum(one.seconds for one in reports)
        return {
            "steps": len(reports),
            **self._task.describe(),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "loss": {"first": reports[0].loss, "last": reports[-1].loss},
            "first_step": asdict(reports[0]),
            "evaluation": {"before": before, "after": after},
            "dtype": self._config.training.dtype.name,
            "world_size": self._ranks.world_size,
            **parameter_counts(engine.module),
        }
