"""Trains the same model four ways and puts what was measured beside the formulas."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from llmsys_exp.errors import JobError, UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.parallelism import formulas, models
from llmsys_exp.workers.parallelism.formulas import MICRO_BATCHES, Batch, Shape
from llmsys_exp.workers.parallelism.meters import Kept, Stopwatch, Traffic, held_bytes
from llmsys_exp.workers.parallelism.results import (
    DATA,
    ONE,
    PIPELINE,
    TENSOR,
    Measured,
    byte_rows,
    largest_difference,
    memory_rows,
)
from llmsys_exp.workers.parallelism.schemes import (
    DataParallel,
    OneRank,
    PipelineParallel,
    Scheme,
    TensorParallel,
)
from llmsys_exp.workers.ranks import Ranks

WARM_STEPS, TIMED_STEPS = 1, 4
LEAST_SEQUENCES = 2
"""In a micro-batch, or starting operators would take longer than their work."""
LOSS_TOLERANCE = 1e-4
"""Relative: fp32 sums in another order."""


class Comparison:
    """One run: four ways of training, then the pipeline's bubble over the number of micro-batches."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        from transformers import AutoConfig

        self._job, self._ranks, training = job, ranks, job.config.training
        self._shape_config = AutoConfig.from_pretrained(job.model_source)
        self._shape = Shape.of(self._shape_config)
        sequences, length = int(training.global_batch or 0), job.config.data.max_length
        self._batch = Batch(sequences, length, ranks.world_size)
        if job.resolved.train_file is None:
            raise UserError("There is no training file", where="data.train")
        self._batches = [
            one.to(ranks.device)
            for one in models.make_batches(
                job.resolved.train_file,
                steps=int(training.max_steps or 1),
                sequences=sequences,
                length=length,
            )
        ]

    def run(self) -> None:
        """Measure everything and write the result from rank 0."""
        schemes: dict[str, Callable[[], Scheme]] = {
            ONE: lambda: OneRank(self._build(), self._ranks),
            DATA: lambda: DataParallel(self._build(), self._ranks),
            PIPELINE: lambda: self._pipeline(MICRO_BATCHES),
            TENSOR: lambda: TensorParallel(self._build(), self._ranks),
        }
        measured = {}
        for name, make in schemes.items():
            events.phase(f"train: {name}")
            measured[name] = self._train(make())
        events.phase("the pipeline's bubble")
        bubble = self._bubbles()
        _check_losses(measured)
        if self._ranks.is_first:
            write_json(self._job.paths.result("parallelism"), self._result(measured, bubble))

    def _build(self) -> Any:
        return models.build(self._shape_config, seed=self._job.config.seed, device=self._ranks.device)

    def _pipeline(self, micro_batches: int) -> PipelineParallel:
        return PipelineParallel(self._build(), self._ranks, micro_batches=micro_batches)

    def _train(self, scheme: Scheme) -> list[dict[str, Any]]:
        """Train all steps, the last one under the meters, and return what each rank measured."""
        weights = list(scheme.module.parameters())
        # a rank may hold distributed and plain tensors, which the faster forms cannot mix
        optimizer = torch.optim.AdamW(weights, lr=self._job.config.training.learning_rate, foreach=False)
        losses, seconds = [], []
        for number, ids in enumerate(self._batches, start=1):
            traffic = Traffic(on_sockets=self._ranks.device.type == "cpu")
            kept = Kept(scheme.module)
            began = time.perf_counter()
            if number == len(self._batches):
                with traffic.watch(), kept.watch():
                    part = scheme.forward_backward(ids)
            else:
                part = scheme.forward_backward(ids)
                seconds.append(time.perf_counter() - began)
            gradients = held_bytes(weight.grad for weight in weights)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(self._ranks.total(part)[0])
        states = [one for state in optimizer.state.values() for one in state.values()]
        memory = formulas.Memory(held_bytes(weights), gradients, held_bytes(states), kept.kept_bytes)
        figures = {"losses": losses, "memory": memory.to_dict(), "traffic": traffic.to_dict()}
        return self._ranks.gather(figures | {"step_s": min(seconds, default=None)})

    def _bubbles(self) -> list[dict[str, Any]]:
        counts = [
            2**power for power in range(16) if self._batch.sequences % (LEAST_SEQUENCES * 2**power) == 0
        ]
        return [self._bubble(micro_batches) for micro_batches in counts]

    def _bubble(self, micro_batches: int) -> dict[str, Any]:
        """Measure the share of a step in which ranks wait: the least of a few, as other load only adds."""
        pipeline = self._pipeline(micro_batches)
        steps = []
        for _ in range(WARM_STEPS + TIMED_STEPS):
            pipeline.work = Stopwatch(self._ranks.device)
            distributed.barrier()
            began = time.perf_counter()
            pipeline.forward_backward(self._batches[0])
            at_work = pipeline.work.read()
            distributed.barrier()
            span = time.perf_counter() - began
            work, whole = self._ranks.total(at_work, span)
            steps.append((1 - work / whole, span))
        share, seconds = min(steps[WARM_STEPS:])
        return {
            "micro_batches": micro_batches,
            "formula": formulas.bubble_fraction(self._ranks.world_size, micro_batches),
            "measured": share,
            "step_s": seconds,
        }

    def _result(self, measured: Measured, bubble: list[dict[str, Any]]) -> dict[str, Any]:
        shape, batch = self._shape, self._batch
        return {
            "ranks": batch.ranks,
            "device": self._ranks.device.type,
            "shape": vars(shape) | {"parameters": formulas.parameters(shape)},
            "sequences": batch.sequences,
            "length": batch.length,
            "micro_batches": MICRO_BATCHES,
            "losses": {name: rows[0]["losses"] for name, rows in measured.items()},
            "loss_differences": {name: largest_difference(measured, name) for name in measured},
            "step_s": {name: rows[0]["step_s"] for name, rows in measured.items()},
            "bytes": byte_rows(measured, shape, batch),
            "memory": memory_rows(measured, shape, batch),
            "bubble": bubble,
        }


def _check_losses(measured: Measured) -> None:
    """Fail when a scheme did not train as one rank does."""
    for name in measured:
        off = largest_difference(measured, name)
        if not off <= LOSS_TOLERANCE:
            raise JobError(
                f"{name} parallelism trains otherwise than one rank: its losses are off by {off:.1e}",
                kind="wrong_loss",
                do="Report it, with the file log.txt of the run folder",
            )
