"""One rank of a training job over its start and first steps, in real code on shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from planner.memory.arena import Arena, Buffer
from planner.memory.replay import gpu_allocator
from planner.simulate.engine import WEIGHTS, name_gradients, name_states, start_engine
from planner.simulate.fsdp2 import fake_ranks, shard
from planner.simulate.model import build_model, prepare
from planner.simulate.modules import ModuleNames
from planner.simulate.nvme import swapping
from planner.simulate.recorder import ACTIVATIONS, GPU, Recorder
from planner.simulate.settings import ds_config
from planner.simulate.shaped.flash import flash_attention
from planner.simulate.shaped.liger_model import patched
from planner.simulate.shaped.packed import unpacking
from planner.simulate.steady import repeat
from planner.simulate.surroundings import simulated_gpu
from planner.simulate.ulysses import share_sequences, sharing
from planner.simulate.weights import ModelWeights
from planner.tables import HOPPER, card_of, gpu, workspace_bytes
from planner.training import DISTINCT_MICRO_BATCHES, STEPS_FOR_FRAGMENTS, STEPS_FOR_PEAK
from planner.training_case import TrainingCase

STARTING, STEPPING, BACKWARD, INPUTS = "engine buffers", "step temporaries", "backward temporaries", "inputs"


class SimulatedRun:
    """One rank of a job.

    Args:
        case: the job.
        content: the same in the case format, of which DeepSpeed's settings are read.
        config: transformers' configuration of the model.
        rank: which one.
        trust: whether code that came with the model may be run.

    Attributes:
        arena: what was allocated, once it has been played.
        start_peak_bytes: highest moment of loading and engine start.
        weights: the model's parameters.
    """

    def __init__(
        self,
        case: TrainingCase,
        content: Mapping[str, Any],
        config: Any,
        *,
        rank: int = 0,
        trust: bool = False,
    ) -> None:
        self.case, self._config, self._rank, self._trust = case, config, rank, trust
        self._micro_batches = min(case.grad_accum, DISTINCT_MICRO_BATCHES)
        self._ds_config = ds_config(case, content, grad_accum=self._micro_batches)
        self.arena = Arena(gpu_allocator(expandable_segments=case.expandable_segments))
        self.modules = ModuleNames()
        offloads = (case.offload_optimizer, case.offload_param) != ("none", "none") or case.checkpointing.cpu
        self.recorder = Recorder(
            self.arena,
            workspace_bytes(case.device),
            card=card_of(case.device),
            offloads=offloads,
            where=self.modules.now,
        )
        self.start_peak_bytes = 0
        self._first = 0  # number of the event that the last step began with
        self._ends: list[tuple[int, str]] = []  # of its phases
        self._left: list[Buffer] | None = None
        self._kept: Any = None  # outputs of the model that the caller holds during backward

    def play(self, *, steps: int = STEPS_FOR_FRAGMENTS) -> Arena:
        """Run everything; the arena then holds events, phases and the peak of the steps."""
        case, hopper = self.case, gpu(self.case.device).capability == HOPPER
        device = simulated_gpu(self.recorder, rank=self._rank, world_size=case.world_size, hopper=hopper)
        swaps = swapping(case, self._ds_config)
        ranks = fake_ranks(case, self.recorder, rank=self._rank)
        with device, patched(case), unpacking(), flash_attention(case), sharing(case), swaps, ranks:
            engine = self._start()
            self.start_peak_bytes = max(phase.peak_bytes for phase in self.arena.phases)
            self.arena.forget_peak()
            for step in range(steps):
                first = len(self.arena.events)
                if step < STEPS_FOR_PEAK or not self._repeat(step):
                    self._ends = []
                    self._optimize(engine, step)
                    self._first = first
        return self.arena

    def _repeat(self, step: int) -> bool:
        """Let a step go as the last one; whether that could be done."""
        names = [(number, f"{phase} {step + 1}") for number, phase in self._ends]
        self._left = repeat(self.arena, self._first, names, self.recorder.held(), self.recorder.same_origin)
        return self._left is not None

    def _start(self) -> Any:
        recorder = self.recorder
        recorder.label = WEIGHTS
        model = build_model(self.case, self._config, self._ds_config, recorder, trust=self._trust)
        recorder.take(model.parameters())
        model = prepare(self.case, model)
        if self.case.engine == "fsdp2":
            shard(self.case, model)
        self.modules.follow(model)
        self.arena.end_phase("load")
        recorder.label, recorder.starting = STARTING, True
        groups = share_sequences(self.case, model)
        engine = start_engine(self.case, model, self._ds_config, recorder, groups=groups)
        recorder.starting = False
        self.weights = ModelWeights(model, self.case.quantization, self.case.dtype)
        name_states(recorder, engine)
        self.arena.end_phase("engine start")
        return engine

    def _end_phase(self, name: str, step: int) -> None:
        self.arena.end_phase(f"{name} {step + 1}")
        self._ends.append((len(self.arena.events), name))

    def _optimize(self, engine: Any, step: int) -> None:
        loss = None
        for _ in range(self._micro_batches):
            loss = None  # the graph of the last micro-batch goes with the last name for its loss
            loss = self._forward(engine, step)
            self._backward(engine, loss, step)
            self.recorder.label = STEPPING
            engine.step()
        name_states(self.recorder, engine)
        self._end_phase("step", step)

    def _forward(self, engine: Any, step: int) -> Any:
        recorder, case = self.recorder, self.case
        recorder.label = INPUTS
        inputs = _inputs(case)
        recorder.label, recorder.answer = ACTIVATIONS, not case.masked  # "is nothing masked?"
        outputs = engine(**inputs)
        recorder.answer = False  # "is anything infinite?"
        self._kept = outputs if case.outputs_kept else None
        self._end_phase("forward", step)
        return outputs.loss

    def _backward(self, engine: Any, loss: Any, step: int) -> None:
        recorder = self.recorder
        recorder.label, recorder.backward = BACKWARD, True
        engine.backward(loss)
        recorder.backward, self._kept = False, None
        name_gradients(recorder, engine.module.parameters())
        self._end_phase("backward", step)


def _inputs(case: TrainingCase) -> dict[str, Any]:
    shape = (case.micro_batch, case.seq_len // case.sequence_parallel)

    def numbers() -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=GPU)

    ids = numbers()
    inputs = {"input_ids": ids, "labels": ids}
    if case.padded:
        inputs["attention_mask"] = numbers()
    if case.packed or case.sequence_parallel > 1:  # where a rank's part of the sequence lies
        inputs["position_ids"] = numbers()
    return inputs
