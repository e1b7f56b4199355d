"""Seconds of an optimizer step, from arithmetic, memory traffic, links and the host's own work.

A roofline with a floor: the GPU's time is that of its matrix products and of the bytes that everything else
moves; the host's time is that of starting all of it; the longer one counts. Transfers that DeepSpeed does not
hide come on top. Meant to rank settings of one job; `benchmarks/speed.py` compares it with measured steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.grid.counts import Counts, counts_of
from planner.grid.polynomial import Array, features
from planner.grid.profile import Profile, profile_of
from planner.liger import fuses_loss
from planner.optimizers import optimizer
from planner.tables import CPU, constant, gpu
from planner.training_case import TrainingCase
from planner.units import DTYPE_BYTES

FP32 = 4
BACKWARD_ATTENTION = 2.5  # FlashAttention's backward pass does five products for the two of forward
CAUSAL = 0.5
GATHERS = 2  # a stage-3 weight travels for forward and again for backward
CPU_FLOPS = 5e10  # a core-bound machine; only ratios matter there
CPU_BYTES = 1e10


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step by cause, one value a point of the grid."""

    compute_s: Array
    traffic_s: Array
    host_s: Array
    optimizer_s: Array
    links_s: Array
    tokens: Array

    @property
    def seconds(self) -> Array:
        """The whole step."""
        return np.maximum(self.compute_s + self.traffic_s, self.host_s) + self.optimizer_s + self.links_s

    @property
    def tokens_per_s(self) -> Array:
        """Tokens of all ranks in a second."""
        return self.tokens / self.seconds


def step_time(case: TrainingCase, micro_batch: Any, seq_len: Any, grad_accum: Any) -> StepTime:
    """Forecast a step at each micro-batch, length and number of micro-batches (arrays broadcast)."""
    batch, length, accum = (
        np.asarray(x, dtype=np.float64) for x in np.broadcast_arrays(micro_batch, seq_len, grad_accum)
    )
    shape = batch.shape
    local = batch.ravel() / case.sequence_parallel
    at = features(local, length.ravel())
    counts, profile = counts_of(case), profile_of(case)
    tokens = local * length.ravel()
    flops = _flops(case, counts, tokens, length.ravel())
    layers, passes = case.architecture.layers, accum.ravel()
    rate, bandwidth = _rates(case)
    moved = constant("traffic_passes") * profile.traffic_bytes(at, layers) + _chunked_head(
        case, counts, tokens
    )
    seconds = (
        flops * passes / rate,
        moved * passes / bandwidth,
        _host_s(case, counts, profile) * passes + constant("step_s"),
        np.full(tokens.shape, _optimizer_s(case, counts, bandwidth)),
        _links_s(case, counts) + _gathers_s(case, counts) * passes,
    )
    factor = _factor(case)
    return StepTime(
        *(np.reshape(part * factor, shape) for part in seconds),
        tokens=np.reshape(tokens * passes * case.world_size, shape),
    )


def _factor(case: TrainingCase) -> float:
    """Measured over forecast seconds on this machine, where somebody has measured."""
    measured = None if case.calibration is None else case.calibration.speed_factor
    return 1.0 if measured is None else measured


def _rates(case: TrainingCase) -> tuple[float, float]:
    """Arithmetic a second in the case's type, and bytes a second."""
    if case.device == CPU:
        return CPU_FLOPS, CPU_BYTES
    card = gpu(case.device)
    fast = card.fp16_tflops if case.dtype == "fp16" else card.bf16_tflops or card.fp16_tflops / 8
    tflops = fast if case.dtype != "fp32" else fast / 8  # no tensor cores for fp32 by default
    return constant("matmul_share") * tflops * 1e12, card.memory_bandwidth_gb_s * 1e9


def _flops(case: TrainingCase, counts: Counts, tokens: Array, length: Array) -> Array:
    """Matrix products of one pass: two a weight and token forwards, as many again for each gradient."""
    again = 1 if case.gradient_checkpointing else 0
    blocks = 2 * counts.multiplied * (2 + again) + 2 * counts.multiplied_trained
    head = 2 * counts.head * (3 if counts.head_trained else 2)
    arch = case.architecture
    scores = 4 * CAUSAL * arch.q_width * arch.layers * (1 + BACKWARD_ATTENTION + again)
    return tokens * (blocks + head + scores * length)


def _chunked_head(case: TrainingCase, counts: Counts, tokens: Array) -> Array:
    """Liger's fused loss reads the output layer again for each chunk, and rewrites its gradient."""
    if not fuses_loss(case):
        return np.zeros(tokens.shape)
    chunks = np.minimum(tokens, case.architecture.vocab / case.architecture.hidden)
    passes = 5 if counts.head_trained else 2
    return chunks * passes * counts.head * DTYPE_BYTES[case.dtype]


def _host_s(case: TrainingCase, counts: Counts, profile: Profile) -> float:
    requests = constant("request_s") * profile.requests(case.architecture.layers)
    visits = 0 if case.zero_stage < 3 else counts.modules * (3 if case.gradient_checkpointing else 2)
    return requests + constant("gather_visit_s") * visits


def _optimizer_s(case: TrainingCase, counts: Counts, bandwidth: float) -> float:
    """Gradients, master weights and state pass the memory bus once each way; offloaded ones the host."""
    part = counts.trained if case.zero_stage == 0 else counts.trained / case.world_size
    if case.offload_optimizer != "none":
        return part / constant("cpu_adam_elements_per_s")
    itemsize = DTYPE_BYTES[case.dtype]
    state = 2 * optimizer(case.optimizer).bytes_per_element()
    # DeepSpeed: into the bucket, averaged, kept, its norm in fp64, flattened, widened, clipped, applied
    # to the master weights, which are copied back: each a read and a write.
    copies = 8 * itemsize + 18 + 2 * itemsize + (itemsize + FP32) + 2 * FP32 + 3 * FP32 + itemsize
    return part * (state + (copies if case.engine == "deepspeed" else 5 * itemsize)) / bandwidth


def _links_s(case: TrainingCase, counts: Counts) -> float:
    """Gradients are reduced and weights gathered once a step."""
    if case.world_size == 1 or case.device == CPU:
        return 0.0
    itemsize, others = DTYPE_BYTES[case.dtype], (case.world_size - 1) / case.world_size
    travels = 2 if case.zero_stage < 3 else 1
    return travels * itemsize * counts.trained * others / _link_rate(case)


def _gathers_s(case: TrainingCase, counts: Counts) -> float:
    """Stage 3: every weight is gathered in each direction, over the host link where it rests there."""
    if case.zero_stage < 3 or case.device == CPU:
        return 0.0
    world = case.world_size
    weights = GATHERS * counts.held_bytes
    seconds = weights * (world - 1) / world / _link_rate(case) if world > 1 else 0.0
    if case.offload_param != "none":
        seconds += weights / world / (constant("link_share") * gpu(case.device).pcie_gb_s * 1e9)
    return seconds


def _link_rate(case: TrainingCase) -> float:
    return constant("link_share") * gpu(case.device).link_gb_s * 1e9
