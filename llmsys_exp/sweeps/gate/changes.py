"""The cheapest change that makes a point fit, by closed forms: many points of one structure at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmsys_exp.sweeps.gate.margins import surely_fits
from llmsys_exp.sweeps.gate.node import node_bytes
from llmsys_exp.sweeps.gate.playing import Judged, Pair
from planner.grid.estimate import peak_bytes
from planner.grid.structures import consistent
from planner.search import Room
from planner.training_case import TrainingCase
from planner.units import gib
from planner.verdict import FSDP2, changes


@dataclass(frozen=True)
class Fix:
    """A change: its overrides, and what the job is then estimated to need."""

    overrides: tuple[str, ...]
    needed_bytes: float

    def __str__(self) -> str:
        return f"{' '.join(self.overrides)} (needs about {gib(int(self.needed_bytes)):.1f} GiB)"


@dataclass(frozen=True)
class _Change:
    """One change to a structure: as many of its settings as it fits are sized as `pairs` says."""

    case: TrainingCase
    texts: list[tuple[str, ...]]
    places: list[int]
    pairs: list[Pair]


def cheapest_changes(judged: Sequence[Judged], room: Room) -> list[Fix | None]:
    """Return for each setting that does not fit the first change that surely makes it fit.

    In the planner's order, cheapest in speed and quality first; main memory is held to its limit too. One
    whose estimate fits, and its band does not, is named where there is no surer one.
    """
    found: list[Fix | None] = [None] * len(judged)
    if room.gpu_bytes is None:
        return found
    groups: dict[tuple[TrainingCase, str], list[int]] = {}
    for place, one in enumerate(judged):
        if one.case is not None and one.case.engine != FSDP2:
            groups.setdefault((one.case, one.where), []).append(place)
    for (case, where), places in groups.items():
        pairs = [judged[place].pair for place in places]
        for place, fix in zip(places, _of_structure(case, pairs, where, room), strict=True):
            found[place] = fix
    return found


def _of_structure(case: TrainingCase, pairs: Sequence[Pair], where: str, room: Room) -> list[Fix | None]:
    assert room.gpu_bytes is not None
    sure: list[Fix | None] = [None] * len(pairs)
    unsure: list[Fix | None] = [None] * len(pairs)
    for change in _changes(case, pairs, where):
        micro, accum = (np.array([pair[at] for pair in change.pairs], dtype=np.float64) for at in (0, 1))
        peaks = peak_bytes(change.case, micro, change.case.seq_len, accum)
        rows = zip(change.places, change.pairs, change.texts, peaks.tolist(), strict=True)
        for place, pair, texts, peak in rows:
            if sure[place] or peak > room.gpu_bytes or not _node_holds(change.case, pair, room):
                continue
            fix = Fix(texts, peak)
            if surely_fits(change.case, peak, room.gpu_bytes):
                sure[place] = fix
            unsure[place] = unsure[place] or fix
        if all(sure):
            break
    return [one or other for one, other in zip(sure, unsure, strict=True)]


def _changes(case: TrainingCase, pairs: Sequence[Pair], where: str) -> Iterator[_Change]:
    """The planner's changes in its order, each of all sizes."""
    if where != "gpu":
        yield from (_whole(text, changed, pairs) for text, changed in _less_offloaded(case))
        return
    others = list(changes(replace(case, micro_batch=1)))  # without smaller batches
    early = [one for one in others if one[0].startswith("training.")]
    yield from (_whole(text, changed, pairs) for text, changed in early)
    yield from _smaller(case, pairs)
    yield from (_whole(text, changed, pairs) for text, changed in others[len(early) :])


def _whole(text: str, changed: TrainingCase, pairs: Sequence[Pair]) -> _Change:
    return _Change(changed, [tuple(text.split())] * len(pairs), list(range(len(pairs))), list(pairs))


def _smaller(case: TrainingCase, pairs: Sequence[Pair]) -> Iterator[_Change]:
    """Micro-batches halved once, twice ..., with more accumulation, as long as there are any."""
    for times in range(1, max(micro for micro, _ in pairs).bit_length()):
        change = _Change(case, [], [], [])
        for place, (micro, accum) in enumerate(pairs):
            smaller = micro >> times
            if smaller:
                pair = (smaller, accum * micro // smaller)
                change.texts.append((f"training.micro_batch={pair[0]}", f"training.grad_accum={pair[1]}"))
                change.places.append(place)
                change.pairs.append(pair)
        yield change


def _less_offloaded(case: TrainingCase) -> list[tuple[str, TrainingCase]]:
    without = {
        "offload.param=none": replace(case, offload_param="none"),
        "offload.optimizer=none offload.param=none": replace(
            case, offload_optimizer="none", offload_param="none"
        ),
    }
    return [(text, changed) for text, changed in without.items() if changed != case and consistent(changed)]


def _node_holds(case: TrainingCase, pair: Pair, room: Room) -> bool:
    if room.host_bytes is None:
        return True
    return node_bytes(case, pair, room.ranks_per_node) <= room.host_bytes
