"""Memory of an engine beside the activations, in closed form: what rests, what comes in backward and step.

The same rules as `planner/deepspeed` plays one by one; sources are named there.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.grid.counts import Counts
from planner.optimizers import optimizer
from planner.training_case import TrainingCase
from planner.units import DTYPE_BYTES

FP32 = 4
EIGHT_BITS = 8
NORM = 8


@dataclass(frozen=True)
class Engine:
    """Bytes of one rank.

    Attributes:
        rests: weights, optimizer state and permanent buffers once the first step is over.
        top: what backward adds where activations are highest.
        low: what backward adds by its end.
        step: what the optimizer step adds.
        start: highest moment of loading and engine start.
    """

    rests: int
    top: int
    low: int
    step: int
    start: int


def engine_of(case: TrainingCase, counts: Counts) -> Engine:
    """The engine's bytes for one structure of a job."""
    if case.engine == "plain":
        return _plain(case, counts)
    makers = {0: _stage0, 1: _stage12, 2: _stage12, 3: _stage3}
    return makers[case.zero_stage](case, counts)


def _state(case: TrainingCase, elements: float) -> float:
    row = optimizer(case.optimizer)
    return 0.0 if row.paged else row.bytes_per_element() * elements


def _temporary(case: TrainingCase, elements: float, largest: float | None = None) -> float:
    """Temporaries of a step over `elements`, whose largest tensor has `largest` (None: it is one)."""
    row = optimizer(case.optimizer)
    each = row.step_tensors_each * (elements if largest is None else largest)
    return FP32 * (row.step_tensors * elements + each)


def _plain(case: TrainingCase, counts: Counts) -> Engine:
    itemsize = DTYPE_BYTES[case.dtype]
    gradients = itemsize * counts.trained
    scale = itemsize / FP32 if optimizer(case.optimizer).typed else 1
    state = 0.0 if optimizer(case.optimizer).factored else _state(case, counts.trained) * scale
    buckets = gradients if case.world_size > 1 else 0
    temporary = _temporary(case, counts.trained * scale, 2 * counts.largest_trained)
    rests = counts.stored_bytes + state + buckets
    top = gradients if case.grad_accum > 1 else itemsize * counts.head_trained
    return Engine(int(rests), top, gradients, int(gradients + temporary), counts.stored_bytes)


def _stage0(case: TrainingCase, counts: Counts) -> Engine:
    itemsize, trained = DTYPE_BYTES[case.dtype], counts.trained
    gradients = itemsize * trained
    if itemsize == FP32:
        rests = counts.stored_bytes + _state(case, trained)
        step = gradients + _temporary(case, trained)
        return Engine(int(rests), gradients, gradients, int(step), counts.stored_bytes)
    fused = case.optimizer == "deepspeed_adamw"
    rests = counts.stored_bytes + FP32 * trained + _state(case, trained)
    step = gradients + (2 if fused else 1) * FP32 * trained + _temporary(case, trained)
    start = rests + FP32 * trained + (0 if fused else gradients + _temporary(case, trained))
    top = gradients if case.grad_accum > 1 else itemsize * counts.head_trained
    return Engine(int(rests), top, gradients, int(step), int(start))


def _stage12(case: TrainingCase, counts: Counts) -> Engine:
    if case.zero_stage == 1 and case.dtype == "bf16" and case.grad_accum_dtype == "fp32":
        return _bf16(case, counts)
    itemsize, trained = DTYPE_BYTES[case.dtype], counts.trained
    part = trained / case.world_size
    offloads = case.offload_optimizer != "none"
    wide = case.grad_accum_dtype == "fp32" and case.zero_stage == 2
    bucket = itemsize * case.zero.reduce_bucket_size if case.zero.contiguous_gradients else 0
    buckets = bucket * (2 if case.overlaps else 1)
    copy = itemsize * min(trained, case.zero.reduce_bucket_size) if case.world_size > 1 else 0
    own = 0.0 if offloads else (FP32 if wide else itemsize) * part
    if offloads:
        rests = counts.stored_bytes + itemsize * counts.largest_trained
        step, start = 0.0, counts.stored_bytes + itemsize * trained
    else:
        rests = counts.stored_bytes + FP32 * part + _state(case, part)
        flat = 0.0 if wide else (itemsize + FP32) * part if itemsize < FP32 else FP32 * part
        step = own + max(flat, (0 if wide else FP32) * part + _temporary(case, part))
        start = counts.stored_bytes + max(itemsize * trained, 2 * FP32 * part)
    everything = itemsize * trained if case.zero_stage == 1 else 0
    head = itemsize * counts.head_trained
    again = case.grad_accum > 1
    top = max(head, (everything + buckets if case.zero_stage == 1 else own) if again else 0)
    widest = max(copy, NORM * counts.largest_trained if offloads else 0)
    low = max(everything + (buckets if again else 0), buckets + own + (0 if everything else widest))
    return Engine(int(rests), int(top), int(low), int(step), int(start))


def _bf16(case: TrainingCase, counts: Counts) -> Engine:
    itemsize, trained, part = DTYPE_BYTES[case.dtype], counts.trained, counts.trained / case.world_size
    rests = counts.stored_bytes + FP32 * (part + trained) + _state(case, part)
    gradients = itemsize * trained
    top = gradients if case.grad_accum > 1 else itemsize * counts.head_trained
    low = gradients * (2 if case.world_size > 1 else 1)
    return Engine(int(rests), top, low, gradients, int(rests))


def _stage3(case: TrainingCase, counts: Counts) -> Engine:
    itemsize, trained = DTYPE_BYTES[case.dtype], counts.trained
    world, zero = case.world_size, case.zero
    part = trained / world
    offloads, away = case.offload_optimizer != "none", case.offload_param != "none"
    sent = FP32 if case.sequence_parallel > 1 else itemsize  # seq_parallel_communication_data_type
    bucket = sent * zero.reduce_bucket_size if zero.contiguous_gradients else 0
    group = min(part, zero.sub_group_size + counts.largest_trained / world)
    shards = 0.0 if away else counts.held_bytes / world + _kept_whole(case, counts)
    gradients = DTYPE_BYTES[case.grad_accum_dtype or case.dtype] * part
    kept = (1 - zero.offload_ratio) * part if case.offload_optimizer == "cpu" else 0.0
    states = (FP32 + FP32 + 2 * FP32) * kept if offloads else FP32 * part + _state(case, part) + gradients
    window = 0.0
    if world > 1 or away:
        reach = zero.stage3_max_reuse_distance + zero.stage3_prefetch_bucket_size
        window = min(counts.held_bytes, itemsize * reach)
        if counts.packed_bytes:
            window = _packed_window(case, counts, window)
    copy = sent * min(trained, zero.reduce_bucket_size)
    rests = shards + states + bucket
    flat = (itemsize + FP32) * group if gradients < FP32 * part else FP32 * group
    step = 0.0 if offloads else max(flat, FP32 * group + _temporary(case, group))
    start = rests + itemsize * counts.largest_trained
    if counts.packed_bytes:  # loaded whole
        start = max(start, counts.loaded_bytes + itemsize * counts.largest)
    return Engine(int(rests), int(window), int(window + copy), int(step), int(start))


def _kept_whole(case: TrainingCase, counts: Counts) -> int:
    """What each rank holds of a packed base beside its shard: scales, and in 8 bit all of it."""
    base = case.quantization
    if base is None:
        return 0
    return counts.stored_bytes - counts.held_bytes + (counts.packed_bytes if base.bits == EIGHT_BITS else 0)


def _packed_window(case: TrainingCase, counts: Counts, window: float) -> float:
    """Gathered weights of a packed base: in 4 bit all stay for backward, in 8 bit those fetched ahead."""
    assert case.quantization is not None
    plain = counts.held_bytes - counts.packed_bytes
    if case.quantization.bits == EIGHT_BITS:
        return min(window, plain + min(counts.packed_bytes, case.zero.stage3_prefetch_bucket_size))
    return min(counts.held_bytes, counts.packed_bytes + window)
