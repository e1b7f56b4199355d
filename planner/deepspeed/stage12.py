"""ZeRO stages 1 and 2: optimizer state sharded, and at stage 2 the gradients too.

Source: `runtime/zero/stage_1_and_2.py`. Rank 0 is emulated: it owns the first part of the flat buffer,
whose gradients come last.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

from planner.deepspeed.base import (
    BUCKETS,
    FP32,
    GRADIENTS,
    MASTER,
    NORM_BYTES,
    STEP,
    WEIGHTS,
    ReplicatedWeights,
    scratch,
)
from planner.memory.arena import REDUCE_STREAM, Arena, Buffer
from planner.network.modules import Network
from planner.tape.autograd import Parameter
from planner.training_case import TrainingCase
from planner.units import ceil_div


class Stage12(ReplicatedWeights):
    """Replicated weights, sharded optimizer state."""

    def __init__(self, case: TrainingCase, network: Network, arena: Arena) -> None:
        super().__init__(case, network, arena)
        world = case.world_size
        # The flat buffer is padded to a multiple of 2 x world size.
        self.part = ceil_div(self.trained_numel, 2 * world) * 2
        self.flat_numel = self.part * world
        self.shards_gradients = case.zero_stage == 2
        self.offloads = case.offload_optimizer != "none"
        self.contiguous = case.zero.contiguous_gradients or self.offloads
        # Stage 2 with fp32 accumulation adds into one flat part (`_build_compact_grad_partition_buffer`).
        self.compact = self.shards_gradients and case.grad_accum_dtype == "fp32"
        self.mine = self._owned()
        self.owned_numel = sum(p.numel for p in self.mine)
        self.states: list[Buffer] = []
        self.gradients: dict[Parameter, Buffer] = {}
        self.accumulated: list[Buffer] = []
        self.own_gradients: Buffer | None = None
        self.buckets: list[Buffer] = []
        self.in_bucket: list[Parameter] = []
        self.bucket_elements = 0
        self.previous: list[Buffer] = []
        self.ready = False

    def _owned(self) -> dict[Parameter, None]:
        """Parameters that touch rank 0's part: one that the border cuts counts whole."""
        mine: dict[Parameter, None] = {}
        offset = 0
        for parameter in self.trained:
            if offset >= self.part:
                break
            mine[parameter] = None
            offset += parameter.numel
        return mine

    def start(self) -> None:
        """Flatten the trained weights beside the originals, then make this rank's fp32 part."""
        self.cast_adapters()
        new = self.arena.new
        self.arena.empty_cache()
        flat = new(self.flat_numel * self.itemsize, WEIGHTS)
        for parameter in self.trained:
            self.weights[parameter] = [flat]
        copy = new(self.part * self.itemsize, MASTER)
        if self.offloads:
            del copy
            largest = max((p.numel for p in self.trained), default=0)
            self.states.append(new(largest * self.itemsize, BUCKETS))  # temp_grad_buffer_for_gpu_offload
            return
        self.states.append(new(self.part * FP32, MASTER))
        del copy
        scratch(self.arena, self.part * FP32)  # initialize_optimizer_states: one gradient of zeros

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """Stage 2 (and overlap) reduces as gradients come; stage 1 keeps them until the boundary."""
        if not self.ready:
            self.ready = True
            self._make_buckets()
        if self.shards_gradients or self.case.overlaps:
            self._enqueue(parameter, gradient)
        else:
            self.gradients.setdefault(parameter, gradient)

    def begin_micro_batch(self) -> None:
        """The first gradient of each micro-batch makes the buckets anew."""
        self.ready = False

    def _make_buckets(self) -> None:
        self.buckets = []
        if not self.contiguous:
            return
        nbytes = self.case.zero.reduce_bucket_size * self.itemsize
        count = 2 if self.case.overlaps else 1
        self.buckets = [self.arena.new(nbytes, BUCKETS) for _ in range(count)]

    def _enqueue(self, parameter: Parameter, gradient: Buffer) -> None:
        size = self.case.zero.reduce_bucket_size
        if self.bucket_elements + parameter.numel > size:
            self._reduce()
        fits = parameter.numel <= size
        if self.contiguous and fits:
            self.gradients[parameter] = self.buckets[0]  # copied into the bucket; its own storage goes
        elif self.offloads:  # a clone, which nothing else can reach (`_offload_gradient_safety_enabled`)
            self.gradients[parameter] = self.arena.new(gradient.nbytes, GRADIENTS)
        else:
            self.gradients[parameter] = gradient
        self.bucket_elements += parameter.numel
        self.in_bucket.append(parameter)

    def _reduce(self) -> None:
        """Average the bucket; gradients for several owners are flattened into a copy first."""
        if not self.in_bucket:
            return
        self.previous = []
        stream = REDUCE_STREAM if self.case.overlaps else 0
        if self.compact and self.own_gradients is None and any(p in self.mine for p in self.in_bucket):
            self.own_gradients = self.arena.new(self.part * FP32, GRADIENTS)
        if self._spans_ranks():
            copy = self.arena.new(self.bucket_elements * self.itemsize, BUCKETS, stream=stream)
            del copy
        for parameter in self.in_bucket:
            if parameter in self.mine and not self.offloads and self.contiguous:
                self._copy_to_partition(parameter)
            elif self.shards_gradients and (parameter not in self.mine or self.offloads):
                self._drop(parameter)
            if self.offloads and parameter in self.mine:
                scratch(self.arena, self._share(parameter) * NORM_BYTES)  # before it goes to the host
        self.in_bucket.clear()
        self.bucket_elements = 0

    def _drop(self, parameter: Parameter) -> None:
        gradient = self.gradients.pop(parameter, None)
        if gradient is not None and self.case.overlaps and not self.contiguous:
            self.previous.append(gradient)  # kept until the reduction that uses it is surely over

    def _spans_ranks(self) -> bool:
        """Whether a bucket goes to several owners, and is copied piece by piece."""
        if self.case.world_size == 1:
            return False
        if not self.contiguous:
            return len(self.in_bucket) > 1
        owners: set[int] = set()
        for parameter in self.in_bucket:
            first = self._offsets[parameter] // self.part
            last = (self._offsets[parameter] + parameter.numel - 1) // self.part
            owners |= {first, last}
        return len(owners) > 1

    def _share(self, parameter: Parameter) -> int:
        """Elements of an owned parameter inside this rank's part, of which the norm is taken."""
        return min(parameter.numel, self.part - self._offsets[parameter])

    @cached_property
    def _offsets(self) -> dict[Parameter, int]:
        """Where each trained weight begins in the flat buffer."""
        ends = accumulate(parameter.numel for parameter in self.trained)
        return {p: end - p.numel for p, end in zip(self.trained, ends, strict=True)}

    def _copy_to_partition(self, parameter: Parameter) -> None:
        if self.compact:
            del self.gradients[parameter]
            return
        if self.own_gradients is None:
            self.own_gradients = self.arena.new(self.owned_numel * self.itemsize, GRADIENTS)
        self.gradients[parameter] = self.own_gradients

    def end_backward(self, *, boundary: bool) -> None:
        """Reduce what is left and let the buckets go; keep accumulated gradients between boundaries."""
        if not (self.shards_gradients or self.case.overlaps):
            if not boundary:
                return
            for parameter in self.trained:
                self._enqueue(parameter, self.gradients.pop(parameter))
        self._reduce()
        self.buckets, self.previous = [], []
        if self.offloads:
            self.gradients.clear()
        elif self.contiguous:
            self._keep_own(boundary=boundary)
        else:
            self.gradients = {p: g for p, g in self.gradients.items() if p in self.mine}

    def _keep_own(self, *, boundary: bool) -> None:
        """`grads_in_partition` moves to the accumulated gradients, and back at the boundary."""
        self.gradients.clear()
        if self.case.grad_accum == 1 or not self.shards_gradients or self.compact:
            return
        own, self.own_gradients = self.own_gradients, None
        if own is not None and not self.accumulated:
            self.accumulated.append(own)
        if boundary and self.accumulated:
            self.own_gradients = self.accumulated.pop()

    def step(self) -> None:
        """Flatten this rank's gradients, make them fp32, step, and let all of it go."""
        if self.offloads:
            return
        for parameter in self.mine:
            scratch(self.arena, self._share(parameter) * NORM_BYTES)
        if self.compact:  # flat and fp32 already
            self.stepper.step([(self.part,)])
            self.own_gradients = None
            return
        flat = None  # flattening one tensor is a view of it
        if len(self.mine) > 1 or self.itemsize == FP32:
            flat = self.arena.new(self.part * self.itemsize, STEP)
        wide = self.arena.new(self.part * FP32, STEP) if self.itemsize < FP32 else flat
        del flat
        self.gradients.clear()
        self.own_gradients = None
        self.stepper.step([(self.part,)])
        del wide
