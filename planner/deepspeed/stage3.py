"""ZeRO stage 3: weights, gradients and optimizer state sharded.

Source: `runtime/zero/stage3.py`. Parameters are padded to a multiple of the world size one by one.
"""

from __future__ import annotations

from planner.deepspeed.base import (
    BUCKETS,
    FP32,
    GRADIENTS,
    MASTER,
    NORM_BYTES,
    STEP,
    WEIGHTS,
    replaced_head,
    scratch,
)
from planner.deepspeed.coordinator import Coordinator
from planner.memory.arena import MAIN_STREAM, REDUCE_STREAM, Arena, Buffer
from planner.network.modules import Module, Network
from planner.optimizers import Stepper
from planner.tape.autograd import Parameter
from planner.training_case import TrainingCase
from planner.units import DTYPE_BYTES, ceil_div


class Stage3:
    """Sharded weights: gathered around each module that uses them."""

    shards_weights = True
    blocks = None

    def __init__(self, case: TrainingCase, network: Network, arena: Arena) -> None:
        self.case, self.network, self.arena = case, network, arena
        self.keeps_inputs = case.zero.memory_efficient_linear
        self.itemsize = DTYPE_BYTES[case.dtype]
        self.gradient_itemsize = DTYPE_BYTES[case.grad_accum_dtype or case.dtype]
        uploads = case.offload_param != "none"
        self.coordinator = Coordinator(arena, case.zero, case.world_size, uploads=uploads)
        self.trained = [p for p in network.parameters() if p.trainable]
        self.shard_numel = sum(self._shard(p) for p in self.trained)
        self.shards: dict[Parameter, Buffer] = {}
        self.states: list[Buffer] = []
        self.bucket: Buffer | None = None  # permanent
        self.sent_itemsize = FP32 if self.case.sequence_parallel > 1 else self.itemsize
        """Of gradients on their way: `seq_parallel_communication_data_type` is fp32 where it is not given."""
        self.sub_groups = self._sub_groups()
        split = case.offload_optimizer == "cpu" and case.zero.offload_ratio < 1
        self.stepper = Stepper(arena, "torch_adamw" if split else case.optimizer)
        self.in_bucket: dict[Parameter, Buffer] = {}
        self.bucket_elements = 0

    def _shard(self, parameter: Parameter) -> int:
        return ceil_div(parameter.held_numel, self.case.world_size)

    def _sub_groups(self) -> list[int]:
        """Shard elements per optimizer sub-group: filled in order up to sub_group_size."""
        groups: list[int] = []
        filled = 0
        for parameter in self.trained:
            filled += self._shard(parameter)
            if filled >= self.case.zero.sub_group_size:
                groups.append(filled)
                filled = 0
        return [*groups, filled] if filled else groups

    def load(self) -> None:
        """`zero.Init`: each parameter is made whole, then only this rank's shard is kept."""
        for parameter in self.network.parameters():
            self._place(parameter)
        if self.network.head is None:
            self._place(replaced_head(self.network))  # lives on until Python's collector finds it
            if self.case.lora is not None:
                self._collect()

    def _place(self, parameter: Parameter) -> None:
        whole = self.arena.new(parameter.numel * parameter.itemsize, WEIGHTS)
        if self.case.offload_param == "none":
            nbytes = self._shard(parameter) * parameter.held_itemsize
            self.shards[parameter] = self.arena.new(nbytes, WEIGHTS)
        del whole

    def start(self) -> None:
        """Flat shards of the trained weights, fp32 copy, reduce bucket, gradient shards, hooks."""
        new, on_gpu = self.arena.new, self.case.offload_optimizer == "none"
        if self.case.offload_param == "none" and self.trained:
            self._defragment()
        if on_gpu:
            self._make_master_weights()
            # initialize_optimizer_states: zero gradients of the largest sub-group; moments come lazily
            scratch(self.arena, max(self.sub_groups, default=0) * FP32)
        else:
            self._keep_on_gpu()
        bucket = self.case.zero.reduce_bucket_size * self.sent_itemsize
        if self.case.zero.contiguous_gradients:
            self.bucket = new(bucket, BUCKETS)
        if on_gpu:
            self.states.append(new(self.shard_numel * self.gradient_itemsize, GRADIENTS))
        self._make_hooks()

    def _keep_on_gpu(self) -> None:
        """`offload_optimizer.ratio` below 1: the first sub-groups keep weights and gradients in fp32 here."""
        for numel in self.sub_groups[: self._kept_groups]:
            self.states += [self.arena.new(numel * FP32, what) for what in (MASTER, GRADIENTS)]

    @property
    def _kept_groups(self) -> int:
        """Sub-groups on the GPU while others are offloaded (`subgroup_to_device`)."""
        if self.case.offload_optimizer != "cpu":
            return 0
        return int((1 - self.case.zero.offload_ratio) * len(self.sub_groups))

    def _collect(self) -> None:
        """Python's collector runs: the shard of what is no parameter any more goes."""
        self.shards = {p: self.shards[p] for p in self.network.parameters() if p in self.shards}

    def _defragment(self) -> None:
        """`zero/utils.py: defragment`: shards go by the host into one flat buffer, caches are emptied."""
        for parameter in self.trained:
            del self.shards[parameter]
        self._collect()
        self.arena.empty_cache()
        self.states.append(self.arena.new(self.shard_numel * self.itemsize, WEIGHTS))

    def _make_master_weights(self) -> None:
        """`_create_fp32_partitions`: a conversion and its clone; the name keeps the last conversion."""
        converted = None
        for numel in self.sub_groups:
            converted = self.arena.new(numel * FP32, MASTER)
            self.states.append(self.arena.new(numel * FP32, MASTER))
        del converted

    def _make_hooks(self) -> None:
        """`create_reduce_and_remove_grad_hooks` gathers each trained parameter for a moment."""
        for parameter in self.trained:
            shard = self._shard(parameter)
            if self.case.offload_param == "none":
                uploaded = None
            else:
                uploaded = self.arena.new(shard * self.itemsize, WEIGHTS)
            scratch(self.arena, shard * self.case.world_size * self.itemsize if self._travels else 0, WEIGHTS)
            del uploaded

    @property
    def _travels(self) -> bool:
        """Whether gathering makes a copy: one rank with its weights at hand only looks at them."""
        return self.case.world_size > 1 or self.case.offload_param != "none"

    def begin_micro_batch(self) -> None:
        """The coordinator starts a new pass."""
        self.coordinator.begin()

    def saved_weight(self, weight: Parameter) -> Buffer | None:
        """Without DeepSpeed's own linear function, autograd holds on to the gathered copy."""
        return None if self.keeps_inputs else self.coordinator.whole.get(weight)

    def packed_weight(self, weight: Parameter) -> Buffer | None:
        """No weight is packed here."""
        del weight
        return None

    def reach(self, weight: Parameter) -> None:
        """An external parameter: gathered where it is read (`parameter_offload.py: ZeROOrderedDict`)."""
        self.coordinator.gather_external(weight)

    def leave(self) -> None:
        """The outermost module has run and lets its external parameters go; later it keeps them."""
        if not self.coordinator.complete:
            self.coordinator.release_external()

    def before_forward(self, module: Module) -> None:
        """Gather the module."""
        self.coordinator.fetch(module, forward=True)

    def after_forward(self, module: Module) -> None:
        """Perhaps release it."""
        self.coordinator.release(module, forward=True)

    def before_backward(self, module: Module) -> None:
        """Gather it again."""
        self.coordinator.fetch(module, forward=False)

    def after_backward(self, module: Module) -> None:
        """Release it."""
        self.coordinator.release(module, forward=False)

    def pass_by(self) -> None:
        """Every module's hooks fetch ahead."""
        self.coordinator.pass_by()

    def pass_back(self) -> None:
        """On the way back as well."""
        self.coordinator.pass_by()

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """Fill the bucket; reduce it when the next gradient does not fit."""
        size = self.case.zero.reduce_bucket_size
        if self.bucket_elements + parameter.numel > size and self.in_bucket:
            self._reduce()
        if self.case.zero.contiguous_gradients and self.bucket_elements + parameter.numel <= size:
            assert self.bucket is not None
            self.in_bucket[parameter] = self.bucket  # copied; its own storage goes
        else:
            self.in_bucket[parameter] = gradient
        self.bucket_elements += parameter.numel

    def _reduce(self) -> None:
        """`reduce_scatter_coalesced`: a padded, interleaved copy, unless it is one even tensor."""
        parameters = list(self.in_bucket)
        world = self.case.world_size
        even = len(parameters) == 1 and parameters[0].numel % world == 0
        numel = 0 if even else sum(self._shard(p) * world for p in parameters)
        stream = REDUCE_STREAM if self.case.overlaps else MAIN_STREAM
        cast = self._cast_to_send()
        copy = self.arena.new(numel * self.sent_itemsize, BUCKETS, stream=stream)
        self._offload_gradients()
        widened: list[Buffer] = []
        if self.gradient_itemsize != self.sent_itemsize:
            widened = [self.arena.new(self._shard(p) * self.gradient_itemsize, BUCKETS) for p in parameters]
        del widened, copy, cast
        self.in_bucket.clear()
        self.bucket_elements = 0

    def _cast_to_send(self) -> list[Buffer]:
        """Gradients that did not go into the bucket, whose elements are of the type that is sent."""
        if self.sent_itemsize == self.itemsize:
            return []
        apart = [one for one, held in self.in_bucket.items() if held is not self.bucket]
        return [self.arena.new(one.numel * self.sent_itemsize, BUCKETS) for one in apart]

    def _offload_gradients(self) -> None:
        """`partition_grads`: each shard comes by the GPU for its norm (fp64) and its fp32 copy.

        On the way to NVMe the copies of a bucket wait for one another (`offload_fp32_gradients`) and are
        written together.
        """
        if self.case.offload_optimizer == "none":
            return
        waiting: list[Buffer] = []
        for parameter in self.in_bucket:
            shard = self.arena.new(self._shard(parameter) * self.itemsize, GRADIENTS)
            scratch(self.arena, self._shard(parameter) * NORM_BYTES)
            wide = self.arena.new(self._shard(parameter) * FP32, GRADIENTS)
            if self.case.offload_optimizer == "nvme":
                waiting.append(wide)
            del shard, wide

    def end_backward(self, *, boundary: bool) -> None:
        """Reduce what is left; release what hooks left behind."""
        del boundary
        if self.in_bucket:
            self._reduce()
        self.coordinator.release_external()
        self.coordinator.release_leftovers()

    def step(self) -> None:
        """The norm of all gradient shards; then each sub-group: flatten them, make them fp32, step."""
        self.coordinator.release_all()
        if self.case.offload_optimizer == "none":
            for parameter in self.trained:  # get_grad_norm_direct
                scratch(self.arena, self._shard(parameter) * NORM_BYTES)
            for number, numel in enumerate(self.sub_groups):
                self._step_sub_group(number, numel)
        for number in range(self._kept_groups):  # by torch's AdamW; its gradients are at hand
            self.stepper.step([(self.sub_groups[number],)], first=number)
        self.coordinator.gather_persistent(self.network.parameters())

    def _step_sub_group(self, number: int, numel: int) -> None:
        wide = self.arena.new(numel * self.gradient_itemsize, STEP)
        if self.gradient_itemsize < FP32:
            flat, wide = wide, self.arena.new(numel * FP32, STEP)
            del flat
        self.stepper.step([(numel,)], first=number)
        del wide
