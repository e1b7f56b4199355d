"""ZeRO-3's parameter coordinator: what is gathered, when, and how long it stays.

Source: `runtime/zero/partitioned_param_coordinator.py` and the gather handles of
`runtime/zero/partition_parameters.py`. From the second pass on a trace of the first one drives prefetch
and release.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate

from planner.memory.arena import GATHER_STREAM, Arena, Buffer
from planner.network.modules import Module
from planner.tape.autograd import Parameter
from planner.training_case import ZeroSettings
from planner.units import ceil_div

GATHERED = "gathered weights"


class GatherHandle:
    """One all-gather under way: a flat buffer that is cut into parameters when first waited for."""

    def __init__(self, parameters: list[Parameter], flat: Buffer | None) -> None:
        self.parameters, self.flat = parameters, flat
        self.complete = False


class Coordinator:
    """Follows which parameters are whole on this rank."""

    def __init__(self, arena: Arena, settings: ZeroSettings, world_size: int, *, uploads: bool) -> None:
        """Follow a run; `uploads`: the partitions are in main memory or on NVMe."""
        self.arena, self.settings, self.world, self.uploads = arena, settings, world_size, uploads
        self.whole: dict[Parameter, Buffer | None] = {}
        self.in_flight: dict[Parameter, GatherHandle] = {}
        self.available_numel = 0
        self.external: list[Parameter] = []
        self.outer: dict[Parameter, None] = {}
        self.active: dict[Parameter, set[Module]] = {}
        self.order: list[Module | None] = []
        self.trace: list[tuple[Parameter, int]] = []
        self.complete = False
        self.step_id = 0
        self.queue: deque[tuple[Parameter, int]] = deque()
        self.fetched_for: dict[Parameter, int] = {}
        self.backward_modules: dict[Module, None] = {}
        self.made_again: dict[Module, set[Parameter]] = {}
        """Frozen weights that a block made again has fetched, by the module whose backward asked for it."""
        self._numel_before: list[int] = []
        self._uses: dict[Parameter, list[int]] = {}

    def persists(self, parameter: Parameter) -> bool:
        """Small parameters stay whole from their first use on."""
        return parameter.held_numel <= self.settings.stage3_param_persistence_threshold

    def begin(self) -> None:
        """A forward pass starts: freeze the trace that the pass before recorded."""
        if self.order and not self.complete:
            self.complete = True
            owns = [[] if module is None else module.own() for module in self.order]
            self.trace = [(p, step) for step, own in enumerate(owns) for p in own]
            numels = (sum(p.held_numel for p in own) for own in owns)
            self._numel_before = list(accumulate(numels, initial=0))
            for parameter, step in self.trace:
                self._uses.setdefault(parameter, []).append(step)
        self.queue = deque(self.trace)
        self.fetched_for = {}
        self.step_id = 0
        self.available_numel = 0
        self.in_flight.clear()
        self.external += self._made_whole([p for p in self.outer if p not in self._uses and self.complete])

    def fetch(self, module: Module, *, forward: bool) -> None:
        """Make a module's parameters whole, then prefetch what the trace says comes next."""
        if not forward:
            self.backward_modules[module] = None
        if not self.complete:
            self.order.append(module)
        wanted = module.own()
        self._gather([p for p in wanted if p not in self.whole and p not in self.in_flight])
        owner = next(reversed(self.backward_modules), None) if forward else None
        for parameter in wanted:
            self.active.setdefault(parameter, set()).add(module)
            if owner is not None and not parameter.trainable:
                self.made_again.setdefault(owner, set()).add(parameter)
                self.active[parameter].add(owner)
            handle = self.in_flight.pop(parameter, None)
            if handle is not None:
                self._wait(handle)
            del handle  # its buffer may go with it, before more is fetched
        if self.complete:
            self._drop_from_queue(wanted)
            self._prefetch()
        self.step_id += 1

    def pass_by(self) -> None:
        """A module without weights of its own comes, in either direction: what is next is fetched ahead."""
        if self.complete:
            self._prefetch()
        else:
            self.order.append(None)
        self.step_id += 1

    def gather_external(self, parameter: Parameter) -> None:
        """Make one parameter whole outside the trace, as `param.all_gather()` does.

        From the second pass on the outermost module fetches it as it begins, and keeps it until backward
        ends; of the embedding, which is fetched then all the same, measurements show no more memory.
        """
        if self.complete:
            return
        self.outer[parameter] = None
        if parameter not in self.whole and parameter not in self.in_flight:
            self._gather([parameter])
            self.external.append(parameter)
        handle = self.in_flight.pop(parameter, None)
        if handle is not None:
            self._wait(handle)

    def release_external(self) -> None:
        """Let go what was gathered outside the trace."""
        for parameter in self.external:
            self._partition(parameter)
        self.external.clear()

    def replace(self, parameter: Parameter) -> None:
        """The module put a tensor of its own in the place of the gathered one; the weight counts as whole."""
        if parameter in self.whole:
            self.whole[parameter] = None

    def release(self, module: Module, *, forward: bool) -> None:
        """Let a module's parameters go unless they are small, in use, or soon needed again."""
        candidates, parameters = self._to_release(module), module.own()
        if not forward:
            self.backward_modules.pop(module, None)
            again = self.made_again.pop(module, set())
            candidates |= {p for p in again if not self.persists(p)}
            parameters += [p for p in again if p not in parameters]
        for parameter in parameters:
            users = self.active.get(parameter)
            if users is not None:
                users.discard(module)
            if parameter in candidates and not users:
                self._partition(parameter)

    def release_leftovers(self) -> None:
        """Backward hooks that never fired (an input without gradient) are made up for."""
        while self.backward_modules:
            module, _ = self.backward_modules.popitem()
            for parameter in {*module.own(), *self.made_again.pop(module, ())}:
                self.active.get(parameter, set()).discard(module)
                if not self.persists(parameter) and not self.active.get(parameter):
                    self._partition(parameter)

    def release_all(self) -> None:
        """The optimizer step gives every gathered copy back, small ones are gathered again after it."""
        self.in_flight.clear()
        for parameter in list(self.whole):
            if not self.persists(parameter):
                self._partition(parameter)

    def gather_persistent(self, parameters: list[Parameter]) -> None:
        """After a step all small parameters are gathered in one go."""
        self._made_whole([p for p in parameters if self.persists(p)])

    def _made_whole(self, parameters: list[Parameter]) -> list[Parameter]:
        """Gather what is not whole at once; gives back what that was."""
        missing = [p for p in parameters if p not in self.whole]
        self._gather(missing)
        for parameter in missing:
            handle = self.in_flight.pop(parameter, None)
            if handle is not None:
                self._wait(handle)
        return missing

    def _to_release(self, module: Module) -> set[Parameter]:
        if not self.complete:  # the first pass lets go of small ones too
            return set(module.own())
        large = [p for p in module.own() if not self.persists(p)]
        return {p for p in large if self.fetched_for.get(p, -1) <= self.step_id and not self._is_near(p)}

    def _is_near(self, parameter: Parameter) -> bool:
        """Whether it is used again within `stage3_max_reuse_distance` elements from here."""
        uses = self._uses.get(parameter, [])
        at = bisect_left(uses, self.step_id)
        if at == len(uses):
            return False
        between = self._numel_before[uses[at]] - self._numel_before[self.step_id]
        return between < self.settings.stage3_max_reuse_distance

    def _drop_from_queue(self, wanted: list[Parameter]) -> None:
        missing = {p for p in wanted if self.fetched_for.get(p, -1) < self.step_id}
        dropped = 0
        while self.queue and dropped < len(missing):
            parameter, last_used = self.queue.popleft()
            self.fetched_for[parameter] = last_used
            dropped += 1

    def _prefetch(self) -> None:
        most = min(
            self.settings.stage3_max_live_parameters - self.available_numel,
            self.settings.stage3_prefetch_bucket_size,
        )
        coming: dict[Parameter, None] = {}
        numel = 0
        while self.queue and numel < most:
            parameter, last_used = self.queue.popleft()
            self.fetched_for[parameter] = max(self.fetched_for.get(parameter, -1), last_used)
            if parameter in self.whole or parameter in self.in_flight or parameter in coming:
                continue
            coming[parameter] = None
            numel += parameter.held_numel
        self._gather(list(coming))

    def _gather(self, parameters: list[Parameter]) -> None:
        if not parameters:
            return
        self.available_numel += sum(p.held_numel for p in parameters)
        if self.world == 1:  # `NoGatherHandle`: a view of the partition, or its copy on the GPU
            for parameter in parameters:
                self.whole[parameter] = self._flat([parameter]) if self.uploads else None
            return
        if len(parameters) == 1:
            parameter = parameters[0]
            self.whole[parameter] = self._flat(parameters)
            self.in_flight[parameter] = GatherHandle(parameters, None)
            return
        handle = GatherHandle(parameters, self._flat(parameters))
        self.in_flight.update(dict.fromkeys(parameters, handle))

    def _flat(self, parameters: list[Parameter]) -> Buffer:
        nbytes = sum(ceil_div(p.held_numel, self.world) * self.world * p.held_itemsize for p in parameters)
        return self.arena.new(nbytes, GATHERED, stream=GATHER_STREAM)

    def _wait(self, handle: GatherHandle) -> None:
        """Cut the flat buffer: each parameter gets its own copy; the flat one lives while a handle does."""
        if handle.complete or handle.flat is None:
            return
        for parameter in handle.parameters:
            nbytes = parameter.held_numel * parameter.held_itemsize
            self.whole[parameter] = self.arena.new(nbytes, GATHERED, stream=GATHER_STREAM)
        handle.complete = True

    def _partition(self, parameter: Parameter) -> None:
        if parameter in self.whole and parameter not in self.in_flight:
            del self.whole[parameter]
            self.available_numel -= parameter.held_numel
