"""A quick upper-level estimate: play a few layers through and extend the phases to the full depth.

Used to search many settings; the setting that is chosen is then played in full.
"""

from __future__ import annotations

from dataclasses import replace

from planner.network.build import build_network
from planner.training import STEPS_FOR_PEAK, TrainingRun
from planner.training_case import TrainingCase
from planner.units import ceil_div

SPREAD = 2  # layers between the two depths played


def quick_peak_bytes(case: TrainingCase) -> int:
    """Most bytes allocated in a step or at engine start, within a few percent of the full play."""
    depth, full = _shortest(case), case.architecture.layers
    if depth + SPREAD >= full:
        return max(_phase_peaks(case, full))
    near, far = _phase_peaks(case, depth), _phase_peaks(case, depth + SPREAD)
    layers_left = full - depth
    return max(a + (b - a) * layers_left // SPREAD for a, b in zip(near, far, strict=True))


def _phase_peaks(case: TrainingCase, layers: int) -> list[int]:
    freeze = min(case.freeze_last_layers, layers)
    shallow = replace(case, architecture=replace(case.architecture, layers=layers), freeze_last_layers=freeze)
    return [phase.peak_bytes for phase in TrainingRun(shallow).play(steps=STEPS_FOR_PEAK).phases]


def _shortest(case: TrainingCase) -> int:
    """Layers from which on one more layer adds the same again.

    At stage 3 the weights kept gathered fill a window of `max_reuse_distance` elements first.
    """
    if case.zero_stage < 3:
        return 2
    one = replace(case, architecture=replace(case.architecture, layers=1), freeze_last_layers=0)
    layer = sum(p.numel for m in build_network(one).layers[0].modules() for p in m.own())
    return ceil_div(case.zero.stage3_max_reuse_distance, layer) + 2
