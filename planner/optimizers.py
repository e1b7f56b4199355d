"""What an optimizer keeps for each weight, and what a step needs besides (`data/optimizers.yaml`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.memory.arena import Arena, Buffer
from planner.tables import read_table
from planner.units import ceil_div

FP32 = 4
STATES = "optimizer states"
TEMPORARIES = "step temporaries"
PAGED_FROM = 100_000  # elements; smaller paged state stays ordinary


@dataclass(frozen=True)
class Optimizer:
    """One row of `data/optimizers.yaml`, where each field is explained."""

    name: str
    title: str
    source: str
    state_bytes: tuple[int, ...]
    typed: bool = False
    step_tensors: int = 0
    step_tensors_each: int = 0
    factored: bool = False
    block: int = 0
    least_numel: int = 0
    offload: bool = False
    paged: bool = False
    plain: bool = True

    def state_parts(self, shape: tuple[int, ...], itemsize: int) -> list[int]:
        """Bytes of each state tensor of one stepped tensor.

        >>> optimizer("adamw_8bit").state_parts((1024, 1024), 4)
        [1048576, 1048576, 16384, 16384]
        """
        numel = 1
        for size in shape:
            numel *= size
        if self.factored and len(shape) > 1:
            return [FP32 * numel // shape[-1], FP32 * numel // shape[-2]]
        if self.block and numel >= self.least_numel:
            scales = [FP32 * ceil_div(numel, self.block)] * len(self.state_bytes)
            return [each * numel for each in self.state_bytes] + scales
        wide = itemsize if self.typed else FP32
        return [wide * numel for _ in self.state_bytes]

    def bytes_per_element(self) -> float:
        """State of one fp32 element, for sums over a model."""
        return sum(self.state_bytes) + (FP32 / self.block * len(self.state_bytes) if self.block else 0)


@cache
def optimizers() -> dict[str, Optimizer]:
    """Every optimizer of the table, by name."""
    rows = read_table("optimizers.yaml")
    return {name: _row(name, dict(row)) for name, row in rows.items()}


def _row(name: str, row: dict[str, Any]) -> Optimizer:
    state_bytes = tuple(row.pop("state_bytes"))
    return Optimizer(name=name, state_bytes=state_bytes, **row)


def optimizer(name: str) -> Optimizer:
    """Look one up; the case was checked before."""
    return optimizers()[name]


class Stepper:
    """Emulates `optimizer.step()`: states appear at a tensor's first step, temporaries come and go."""

    def __init__(self, arena: Arena, name: str) -> None:
        self.arena, self.optimizer = arena, optimizer(name)
        self.states: dict[int, list[Buffer]] = {}
        self.paged_bytes = 0

    def step(self, shapes: Sequence[tuple[int, ...]], itemsize: int = FP32, *, first: int = 0) -> None:
        """Step tensors of these shapes; `first` is the number of the first of them among all."""
        self.step_numbered(list(enumerate(shapes, start=first)), itemsize)

    def step_numbered(self, tensors: Sequence[tuple[int, tuple[int, ...]]], itemsize: int) -> None:
        """Step (number, shape) tensors; a number keeps its state from step to step."""
        for number, shape in tensors:
            if number not in self.states:
                self.states[number] = self._new_states(shape, itemsize)
            self._each(shape, itemsize)
        copies = [
            self.arena.new(_numel(shape) * itemsize, TEMPORARIES)
            for _ in range(self.optimizer.step_tensors)
            for _, shape in tensors
        ]
        del copies

    def _new_states(self, shape: tuple[int, ...], itemsize: int) -> list[Buffer]:
        parts = self.optimizer.state_parts(shape, itemsize)
        if self.optimizer.paged and _numel(shape) >= PAGED_FROM:
            kept = len(self.optimizer.state_bytes)
            self.paged_bytes += sum(parts[:kept])
            parts = parts[kept:]
        return [self.arena.new(nbytes, STATES) for nbytes in parts]

    def _each(self, shape: tuple[int, ...], itemsize: int) -> None:
        """One tensor's own temporaries; narrow weights and gradients are widened first."""
        count = self.optimizer.step_tensors_each
        if count:
            count += 2 if itemsize < FP32 else 0
            temporaries = [self.arena.new(_numel(shape) * FP32, TEMPORARIES) for _ in range(count)]
            del temporaries


def _numel(shape: tuple[int, ...]) -> int:
    numel = 1
    for size in shape:
        numel *= size
    return numel
