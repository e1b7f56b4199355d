"""Main memory of one node: what each process holds for good, and what it holds for a moment.

Sources: DeepSpeed 0.19.8 `zero/stage_1_and_2.py`, `zero/stage3.py`, `zero/partition_parameters.py`,
`swap_tensor/optimizer_utils.py`, `swap_tensor/partitioned_param_swapper.py`, `zero/offload_config.py`;
torch 2.11 `ATen/core/CachingHostAllocator.h`. Disk: `planner/disk.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from planner.network.modules import Weights
from planner.optimizers import FP32, optimizer
from planner.tables import CPU, constant_bytes
from planner.tape.autograd import Parameter
from planner.training_case import Method, TrainingCase
from planner.units import DTYPE_BYTES, MIB, ceil_div

OPTIMIZER_BUFFERS = 4  # offload_optimizer.buffer_count
WEIGHT_BUFFERS, WEIGHT_BUFFER = 5, 100_000_000  # offload_param: buffer_count, buffer_size in elements
WEIGHTS_IN_CPU = 1_000_000_000  # offload_param.max_in_cpu, elements
SWAPPED_FROM = MIB  # MIN_AIO_BYTES and aio.block_size: smaller parts stay in memory
STEP_COPIES = 2  # torch's AdamW on the CPU: sqrt() and its quotient, one tensor at a time (optim/adam.py)

PROCESSES = "processes"
KERNELS = "kernels and libraries"
LOADING = "loading the checkpoint"
STARTING = "engine start, passing copies"
STEPPING = "optimizer step, passing copies"
SAVING = "saving the result"
WEIGHTS = "offloaded weights (pinned)"
PINNED = "offloaded optimizer (pinned)"
PAGEABLE = "offloaded master weights (pageable)"
STATES = "offloaded optimizer states (pageable)"
CACHED_WEIGHTS = "weights as first pinned (cached)"
ROUNDING = "rounding of pinned buffers"
PASSING = (LOADING, STARTING, STEPPING, SAVING)


@dataclass
class RankMemory:
    """What one process holds: pinned blocks one by one, and everything else by use."""

    pinned: dict[str, list[int]] = field(default_factory=lambda: {})
    other: dict[str, int] = field(default_factory=lambda: {})

    def pin(self, use: str, *sizes: int) -> None:
        """Add blocks from PyTorch's pinned allocator."""
        self.pinned.setdefault(use, []).extend(size for size in sizes if size)

    def add(self, use: str, nbytes: int) -> None:
        """Add memory that is not rounded: pageable, or locked by DeepSpeed's aio handle."""
        self.other[use] = self.other.get(use, 0) + nbytes

    def uses(self) -> dict[str, int]:
        """Bytes by use; what the pinned allocator adds by rounding is a use of its own."""
        uses = {use: sum(sizes) for use, sizes in self.pinned.items()}
        rounded = sum(pinned_block_bytes(size) - size for sizes in self.pinned.values() for size in sizes)
        return {use: size for use, size in {**uses, ROUNDING: rounded, **self.other}.items() if size}


def pinned_block_bytes(nbytes: int) -> int:
    """What PyTorch takes for a pinned tensor: the next power of two.

    Unless `pinned_max_round_threshold_mb` says otherwise (CachingHostAllocator.h), or DeepSpeed pins by
    itself (`DS_PIN_MEMORY_BACKEND=native`). Freed blocks are kept.

    >>> pinned_block_bytes(5), pinned_block_bytes(8)
    (8, 8)
    """
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def host_bytes(case: TrainingCase, network: Weights, *, ranks_per_node: int) -> dict[str, int]:
    """Bytes of main memory on one node, by use.

    `PASSING` uses are held one after the other, the rest until the end; `host_peak_bytes` sums them up.
    Loading is the upper end, a copy for each rank: random weights, and files of another type. A file of the
    type that is trained is mapped (transformers 5.23 `from_pretrained`): page cache, once a node, given back
    when memory is short.
    """
    rank = RankMemory()
    trained = [p for p in network.parameters() if p.trainable]
    if case.zero_stage in (1, 2) and case.offload_optimizer != "none":
        _stage_1_2(rank, case, trained)
    if case.zero_stage == 3 and trained:
        _stage_3(rank, case, trained)
    if case.offload_param != "none":
        _weights(rank, case, network.parameters())
    if case.gradient_checkpointing and case.checkpointing.cpu:
        kept = case.tokens * case.architecture.hidden * DTYPE_BYTES[case.dtype]
        rank.add("checkpointed activations", kept * case.architecture.layers)
    rank.add(LOADING, sum(p.numel for p in network.parameters()) * DTYPE_BYTES[case.dtype])
    uses = {**_process(case), **rank.uses()}
    return {use: size * ranks_per_node for use, size in uses.items()} | {SAVING: result_bytes(case, network)}


def host_peak_bytes(uses: Mapping[str, int]) -> int:
    """The most a node holds at one time: while loading, at engine start, in a step or while saving.

    Kernels and libraries load with the first step; optimizer state appears then too.
    """
    kept = sum(size for use, size in uses.items() if use not in PASSING)
    early = uses.get(PROCESSES, 0) + uses.get(WEIGHTS, 0) + uses.get(CACHED_WEIGHTS, 0)
    start = kept - uses.get(KERNELS, 0) - uses.get(STATES, 0) + uses.get(STARTING, 0)
    return max(early + uses.get(LOADING, 0), start, kept + max(uses.get(STEPPING, 0), uses.get(SAVING, 0)))


def result_bytes(case: TrainingCase, network: Weights) -> int:
    """What training writes in the end, and rank 0 holds while it does: adapters, or all weights in 16 bit."""
    adapters = case.method in (Method.lora, Method.qlora)
    if adapters:
        return sum(p.numel * p.itemsize for p in network.parameters() if p.trainable)
    return 2 * sum(p.numel for p in network.parameters())


def state_bytes(case: TrainingCase, numel: int) -> int:
    """Optimizer state of a flat fp32 tensor."""
    return sum(optimizer(case.optimizer).state_parts((numel,), FP32)) if numel else 0


def _stage_1_2(rank: RankMemory, case: TrainingCase, trained: list[Parameter]) -> None:
    """`stage_1_and_2.py: __init__, initialize_optimizer_states, async_accumulate_grad_in_cpu_via_gpu`."""
    numel, itemsize = sum(p.numel for p in trained), DTYPE_BYTES[case.dtype]
    part = ceil_div(numel, case.world_size)
    largest = max((p.numel for p in trained), default=0)
    rank.pin(PINNED, FP32 * part, itemsize * part, FP32 * part, itemsize * largest)
    rank.add(STATES, state_bytes(case, part))
    if case.grad_accum > 1 and case.grad_accum_dtype is None:
        rank.pin(
            "accumulated gradients (pinned)", *(itemsize * p.numel for p in _first_partition(trained, part))
        )
    _pass_copies(rank, case, part)


def _first_partition(trained: Iterable[Parameter], part: int) -> Iterable[Parameter]:
    """Parameters of which rank 0 owns at least a piece; each is buffered whole."""
    offset = 0
    for parameter in trained:
        if offset < part:
            yield parameter
        offset += parameter.numel


def sub_groups(case: TrainingCase, trained: Iterable[Parameter]) -> list[int]:
    """Elements of one rank in each sub-group of stage 3 (`stage3.py: _create_fp16_sub_groups`)."""
    parts = [ceil_div(p.numel, case.world_size) for p in trained]
    groups: list[int] = []
    filled = 0
    for index, part in enumerate(parts):
        filled += part
        if filled >= case.zero.sub_group_size or index == len(parts) - 1:
            groups.append(filled)
            filled = 0
    return groups


def _stage_3(rank: RankMemory, case: TrainingCase, trained: list[Parameter]) -> None:
    """`stage3.py: _create_fp32_partitions, initialize_optimizer_states, _setup_for_real_optimizer`."""
    groups = sub_groups(case, trained)
    part, itemsize = sum(groups), DTYPE_BYTES[case.dtype]
    if case.offload_param == "none":
        rank.add(STARTING, itemsize * part)  # utils.py: defragment goes by way of main memory
    if case.offload_optimizer == "none":
        return
    gradient = DTYPE_BYTES[case.grad_accum_dtype or case.dtype]
    rank.pin(PINNED, gradient * part)
    staged = case.offload_optimizer == "nvme"
    swapped = [size for size in groups if staged and FP32 * size >= SWAPPED_FROM]
    held = [size for size in groups if size not in swapped]
    # Gradients of sub-groups that stay on the GPU (ratio) are pinned first too; their blocks stay cached.
    rank.pin(PINNED, *(FP32 * size for size in held))
    on_cpu = held[int((1 - case.zero.offload_ratio) * len(held)) :]
    rank.add(PAGEABLE, sum(FP32 * size for size in on_cpu))
    rank.add(STATES, sum(state_bytes(case, size) for size in on_cpu))
    if staged:
        largest = max(groups, default=0)
        rank.add("optimizer staging (pinned)", OPTIMIZER_BUFFERS * FP32 * largest)
        rank.add(STEPPING, state_bytes(case, largest))  # made in memory at the first step, then written
    _pass_copies(rank, case, max(on_cpu, default=0))


def _process(case: TrainingCase) -> dict[str, int]:
    """A process without any tensor."""
    if case.device == CPU:
        return {PROCESSES: constant_bytes("cpu_process_rss_gib")}
    early = constant_bytes("starting_process_rss_gib")
    return {PROCESSES: early, KERNELS: constant_bytes("process_rss_gib") - early}


def _pass_copies(rank: RankMemory, case: TrainingCase, largest: int) -> None:
    if case.optimizer.startswith("torch_adamw"):
        rank.add(STEPPING, STEP_COPIES * FP32 * largest)


def _weights(rank: RankMemory, case: TrainingCase, parameters: list[Parameter]) -> None:
    """`partition_parameters.py: _partition_param`, `stage3.py: _create_param_groups_fp16_flat_cpu_memory`.

    zero.Init pins the part of each weight by itself; those of trained weights then move into one flat
    buffer, and their blocks stay in the pinned allocator's cache.
    """
    itemsize = DTYPE_BYTES[case.dtype]
    kept = [p for p in parameters if p.numel > case.zero.stage3_param_persistence_threshold]
    parts = {p: itemsize * ceil_div(p.numel, case.world_size) for p in kept}
    flat = sum(ceil_div(p.numel, case.world_size) for p in parameters if p.trainable)
    if case.offload_param == "nvme":
        # a buffer must hold the largest shard (partitioned_param_swapper.py: swap_in asserts it)
        largest = max(ceil_div(p.numel, case.world_size) for p in parameters)
        rank.add("weight staging (pinned)", WEIGHT_BUFFERS * max(WEIGHT_BUFFER, largest) * itemsize)
        rank.pin(WEIGHTS, itemsize * min(flat, WEIGHTS_IN_CPU))
        return
    rank.pin(WEIGHTS, itemsize * flat, *(size for p, size in parts.items() if not p.trainable))
    rank.pin(CACHED_WEIGHTS, *(size for p, size in parts.items() if p.trainable))
