"""Fine-tune a model under DeepSpeed, one process a rank.

python -m llmsys_exp.workers.train RUN_FOLDER
deepspeed --no_local_rank --module llmsys_exp.workers.train RUN_FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from llmsys_exp.config.schema import MethodKind
from llmsys_exp.workers import events
from llmsys_exp.workers.data.encode import Example, encode
from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.data.rows import DataError, read_rows
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job, folder_argument, load_job, settled
from llmsys_exp.workers.methods import apply_method
from llmsys_exp.workers.methods.parameters import parameter_counts
from llmsys_exp.workers.models.kernels import use_liger
from llmsys_exp.workers.models.load import load_base_model
from llmsys_exp.workers.models.tokenizer import check_vocabulary, load_tokenizer
from llmsys_exp.workers.ranks import Ranks, join, quieten, seed_everything
from llmsys_exp.workers.scores import check_score
from llmsys_exp.workers.training.engine import check_batch_sizes, start_engine
from llmsys_exp.workers.training.evaluate import Evaluator
from llmsys_exp.workers.training.loop import StepReport, Trainer
from llmsys_exp.workers.training.memory import MemoryMeter
from llmsys_exp.workers.training.saving import save_adapter, save_whole_model


class TrainingRun:
    """One training job from loading to its results file."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks, self._config = job, ranks, job.config
        training = job.config.training
        self._tokenizer = load_tokenizer(job)
        self._examples, self._heldout = self._load_data()
        self._order = Order(
            count=len(self._examples),
            micro_batch=settled(training.micro_batch, "training.micro_batch"),
            grad_accum=settled(training.grad_accum, "training.grad_accum"),
            world_size=ranks.world_size,
            seed=job.config.seed,
        )
        self._ds_config = json.loads(job.paths.ds_config.read_text(encoding="utf-8"))
        check_batch_sizes(self._ds_config, self._order)

    def run(self) -> None:
        """Load, evaluate, train, evaluate again, save."""
        began = time.monotonic()
        training = self._config.training
        self._memory = MemoryMeter(self._ranks.device)
        steps = self._order.steps(epochs=training.epochs, max_steps=training.max_steps)
        engine = self._start(steps)
        before = self._evaluate(engine, "evaluate before training")
        events.phase("train")
        reports = self._trainer(engine).run(
            steps, metrics=self._job.paths.metrics, log_every=training.log_every
        )
        after = self._evaluate(engine, "evaluate after training")
        self._save(engine)
        memory = self._ranks.gather(self._memory.summary())
        if self._ranks.is_first:
            summary = self._summary(engine, reports, before=before, after=after)
            summary |= {"memory_per_rank": memory, "total_seconds": time.monotonic() - began}
            write_json(self._job.paths.result("train"), summary)

    def _load_data(self) -> tuple[list[Example], list[Example]]:
        events.phase("read data")
        files, data = self._job.resolved, self._config.data
        if files.train_file is None:
            raise DataError("There is no training file", where="data.train")
        train = self._encode(read_rows(files.train_file, data.columns, limit=data.limit))
        if files.heldout_file is None or not self._config.training.evaluate:
            return train, []
        check_score(data.score)
        return train, self._encode(read_rows(files.heldout_file, data.columns))

    def _encode(self, rows: Any) -> list[Example]:
        examples, notes = encode(self._tokenizer, rows, max_length=self._config.data.max_length)
        for note in notes:
            events.note(note)
        return examples

    def _start(self, steps: int) -> Any:
        events.phase("load model")
        model = load_base_model(self._job, device=self._ranks.device)
        check_vocabulary(model, self._tokenizer)
        if self._config.training.liger:
            use_liger(model, self._job)
        checkpointing = settled(
            self._config.training.gradient_checkpointing, "training.gradient_checkpointing"
        )
        model = apply_method(model, self._config.method, checkpointing=checkpointing)
        self._memory.record("model loaded")
        events.phase("start engine")
        engine = start_engine(model, self._ds_config, self._config.training, steps=steps)
        self._memory.record("engine started")
        return engine

    def _trainer(self, engine: Any) -> Trainer:
        return Trainer(
            engine,
            self._examples,
            self._order,
            ranks=self._ranks,
            pad_id=self._tokenizer.pad_token_id,
            train_on_prompt=self._config.data.train_on_prompt,
            memory=self._memory,
        )

    def _evaluate(self, engine: Any, name: str) -> dict[str, float | str] | None:
        if not self._heldout:
            return None
        events.phase(name)
        evaluator = Evaluator(
            self._heldout,
            tokenizer=self._tokenizer,
            ranks=self._ranks,
            score=self._config.data.score,
            micro_batch=self._order.micro_batch,
            sharded=self._ds_config.get("zero_optimization", {}).get("stage", 0) == 3,
        )
        figures = evaluator.run(engine.module, name)
        self._memory.record(name)
        return figures

    def _save(self, engine: Any) -> None:
        events.phase("save")
        if self._config.method.kind in (MethodKind.lora, MethodKind.qlora):
            save_adapter(engine.module, self._job.paths.adapter, ranks=self._ranks)
        else:
            save_whole_model(engine.module, self._tokenizer, self._job.paths.merged, ranks=self._ranks)

    def _summary(self, engine: Any, reports: list[StepReport], *, before: Any, after: Any) -> dict[str, Any]:
        tokens, seconds = sum(one.tokens for one in reports), sum(one.seconds for one in reports)
        return {
            "steps": len(reports),
            "examples": len(self._examples),
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


def main() -> None:
    """Entry point."""
    job = load_job(folder_argument(sys.argv[1:], worker="train"))
    ranks = join(job)
    quieten()
    seed_everything(job.config.seed)
    TrainingRun(job, ranks).run()


if __name__ == "__main__":
    run_and_exit(main)
