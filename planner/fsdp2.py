"""Torch's FSDP2: `fully_shard` on each block and then on the whole model.

Source: torch 2.13 `distributed/fsdp/_fully_shard/` (`_fsdp_param_group.py`, `_fsdp_state.py`,
`_fsdp_collectives.py`, `_fsdp_param.py`). Not measured on GPUs; tests/integration/test_fsdp2_bytes.py holds
it against that code on the CPU. Each parameter is cut along its first dimension, padded to the same rows on
every rank. The root keeps its weights gathered from its forward pass to the end of backward, and its
gradients whole until then, since token ids bring no gradient to hook on. Clipping works in place: a norm is
one number a weight. Optimizers step one tensor at a time unless told otherwise: torch takes its foreach code
for plain tensors (`optim/optimizer.py: _default_to_fused_or_foreach`).
"""

from __future__ import annotations

from math import prod

from planner.deepspeed.base import BUCKETS, FP32, GRADIENTS, STEP, WEIGHTS, ReplicatedWeights
from planner.memory.arena import GATHER_STREAM, REDUCE_STREAM, Arena, Buffer
from planner.network.forward import BlockHooks, Body
from planner.network.modules import Layer, Network
from planner.tape import ops
from planner.tape.autograd import Parameter, Tape, Tensor
from planner.training_case import TrainingCase
from planner.units import DTYPE_BYTES, ceil_div

GATHERED = "gathered weights"
DISTINCT_MICRO_BATCHES = 2  # as `training` plays them


class Group:
    """Parameters that one `fully_shard` call took: they travel together."""

    def __init__(self, parameters: list[Parameter], before: Group | None) -> None:
        self.parameters, self.before = parameters, before
        self.flat: Buffer | None = None  # gathered, not yet cut into parameters
        self.whole: list[Buffer] = []
        self.gradients: dict[Parameter, Buffer] = {}
        self.waiting: dict[Parameter, Buffer] = {}  # of micro-batches that were not reduced
        self.reduced: list[Buffer] = []  # gradient shards, one buffer a group
        self.is_reduced = False


class Fsdp2(ReplicatedWeights):
    """Sharded weights, gradients and state; hooks around blocks instead of modules."""

    def __init__(self, case: TrainingCase, network: Network, arena: Arena) -> None:
        super().__init__(case, network, arena)
        self.world, self.settings = case.world_size, case.fsdp
        if self.settings.fp32_params:  # `param_dtype` covers adapters too
            for parameter in network.parameters():
                parameter.itemsize = self.itemsize
        self.groups = self._make_groups()
        self.root = self.groups[-1]
        self.owner = {p: group for group in self.groups for p in group.parameters}
        self.micro_batch = 0
        self.last_flat: Buffer | None = None  # freed after the next group's copy
        self.in_flight: Buffer | None = None  # input of the last reduce-scatter

    def _make_groups(self) -> list[Group]:
        groups: list[Group] = []
        for layer in self.network.layers:
            parameters = [p for module in layer.modules() for p in module.all()]
            groups.append(Group(parameters, groups[-1] if groups else None))
        blocks = {p for group in groups for p in group.parameters}
        rest = [p for p in self.network.parameters() if p not in blocks]
        return [*groups, Group(rest, groups[-1] if groups else None)]

    @property
    def blocks(self) -> BlockHooks:
        """This engine's hooks."""
        return self

    def _stored_itemsize(self, parameter: Parameter) -> int:
        return FP32 if self.settings.fp32_params else parameter.itemsize

    def _reduce_itemsize(self, parameter: Parameter) -> int:
        given = self.settings.reduce_dtype
        return parameter.itemsize if given is None else DTYPE_BYTES[given]

    def _shard_shape(self, parameter: Parameter) -> tuple[int, ...]:
        first, *rest = parameter.shape
        return (ceil_div(first, self.world), *rest)

    def _shard(self, parameter: Parameter) -> int:
        """Elements of one rank's part, padding included."""
        first, *_ = parameter.shape
        return ceil_div(first, self.world) * (parameter.numel // first) if first else 0

    def load(self) -> None:
        """`fully_shard` brings one module at a time to the GPU and cuts it (`_move_states_to_device`)."""
        for group in self.groups:
            whole = [self.arena.new(p.numel * self._stored_itemsize(p), WEIGHTS) for p in group.parameters]
            for parameter in group.parameters:
                nbytes = self._shard(parameter) * self._stored_itemsize(parameter)
                self.weights[parameter] = [self.arena.new(nbytes, WEIGHTS)]
            del whole

    def start(self) -> None:
        """Nothing to prepare: state and gradients come lazily."""

    def around(self, tape: Tape, layer: Layer, x: Tensor, body: Body) -> Tensor:
        """Run one block with the hooks of its group."""
        group = self.groups[layer.index]
        x = ops.signal(tape, x, lambda: self._after_backward(group))
        self._gather_now(group)
        out = body(x)
        if self.settings.reshard_after_forward:
            group.whole = []
        return ops.signal(tape, out, lambda: self._before_backward(group))

    def begin_micro_batch(self) -> None:
        """The root gathers its own weights."""
        self.micro_batch += 1
        for group in self.groups:
            group.is_reduced = False
        self._gather_now(self.root)

    def end_forward(self) -> None:
        """The last gathered copy goes; the root's backward hook asks for the last block."""
        self.last_flat = None
        self._prefetch(self.root)

    def _gather_now(self, group: Group) -> None:
        """`pre_forward`: the flat copy before this one lives until this one is cut.

        A local name of `wait_for_unshard` holds it while parameters get their storage.
        """
        self._unshard(group)
        self.last_flat = self._cut(group)

    def _before_backward(self, group: Group) -> None:
        self._unshard(group)
        self._cut(group)
        self._prefetch(group)

    def _prefetch(self, group: Group) -> None:
        if group.before is not None:
            self._unshard(group.before)

    def _unshard(self, group: Group) -> None:
        """`foreach_all_gather`: shards in another type are cast into one flat tensor first."""
        if group.whole or group.flat is not None or self.world == 1:
            return
        shards = [(self._shard(p), p.itemsize, self._stored_itemsize(p)) for p in group.parameters]
        cast = sum(numel * narrow for numel, narrow, wide in shards if narrow != wide)
        copy = self.arena.new(cast, GATHERED, stream=GATHER_STREAM)
        nbytes = self.world * sum(numel * narrow for numel, narrow, _ in shards)
        group.flat = self.arena.new(nbytes, GATHERED, stream=GATHER_STREAM)
        del copy

    def _cut(self, group: Group) -> Buffer | None:
        """`foreach_all_gather_copy_out`: each parameter gets storage of its own."""
        flat, group.flat = group.flat, None
        if not group.whole:
            group.whole = [
                self.arena.new(self.world * self._shard(p) * p.itemsize, GATHERED) for p in group.parameters
            ]
        return flat

    def on_gradient(self, parameter: Parameter, gradient: Buffer) -> None:
        """It stays whole until its group has run; one that waits in its type takes it in at once."""
        group = self.owner[parameter]
        if parameter not in group.waiting or self._reduce_itemsize(parameter) != parameter.itemsize:
            group.gradients[parameter] = gradient

    @property
    def _reduces(self) -> bool:
        """Whether this micro-batch ends in a reduction."""
        last = min(self.case.grad_accum, DISTINCT_MICRO_BATCHES)
        return self.settings.sync_each_batch or self.micro_batch == last

    def _after_backward(self, group: Group) -> None:
        """`post_backward`: weights go, gradients are reduced; the input of the last reduction may go."""
        group.is_reduced = True
        group.whole = []
        if not self._reduces:
            self._wait(group)
            return
        self.in_flight = None
        if group.gradients or group.waiting:
            self._reduce(group)

    def _wait(self, group: Group) -> None:
        """`to_accumulated_grad_if_needed`: gradients stay whole, in the type they will travel in."""
        for parameter in list(group.gradients):
            if self._reduce_itemsize(parameter) == parameter.itemsize:
                group.waiting[parameter] = group.gradients[parameter]
            elif parameter not in group.waiting:
                nbytes = parameter.numel * self._reduce_itemsize(parameter)
                group.waiting[parameter] = self.arena.new(nbytes, GRADIENTS)
            del group.gradients[parameter]

    def _reduce(self, group: Group) -> None:
        """`foreach_reduce`: a padded copy of all gradients, its reduced part, and that in the stored type."""
        reduced = {**group.waiting, **group.gradients}
        numel = sum(self._shard(p) for p in reduced)
        one = next(iter(reduced))  # trained weights of a group have one type
        itemsize, stored = self._reduce_itemsize(one), self._stored_itemsize(one)
        self.in_flight = self.arena.new(self.world * numel * itemsize, BUCKETS)
        del reduced
        group.gradients.clear()
        group.waiting.clear()
        part = self.arena.new(numel * itemsize, GRADIENTS, stream=REDUCE_STREAM)
        if stored != itemsize:
            part = self.arena.new(numel * stored, GRADIENTS, stream=REDUCE_STREAM)
        if not group.reduced:  # later ones are added in place
            group.reduced = [part]

    def end_backward(self, *, boundary: bool) -> None:
        """`_root_post_backward_final_callback`: the root first, then blocks whose input had no gradient."""
        del boundary
        for group in (self.root, *self.groups[:-1]):
            if not group.is_reduced:
                self._after_backward(group)
            group.flat = None
        self.in_flight = None

    def _second_temporary(self, shape: tuple[int, ...], itemsize: int) -> Buffer:
        """`_single_tensor_adam` has the root and the quotient at once; foreach divides in place."""
        count = self.stepper.optimizer.step_tensors
        return self.arena.new(count * prod(shape) * itemsize, STEP)

    def step(self) -> None:
        """Each shard in its own type; then `zero_grad(set_to_none=True)`."""
        shards = [(number, self._shard_shape(p)) for number, p in enumerate(self.trained)]
        itemsizes = [self._stored_itemsize(p) for p in self.trained]
        for itemsize in sorted(set(itemsizes)):
            alike = [shard for shard, size in zip(shards, itemsizes, strict=True) if size == itemsize]
            for together in [alike] if self.settings.foreach else [[shard] for shard in alike]:
                beside = None if self.settings.foreach else self._second_temporary(together[0][1], itemsize)
                self.stepper.step_numbered(together, itemsize)
                del beside
        for group in self.groups:
            group.reduced = []
        self.micro_batch = 0
