"""How fast the planner answers: one forecast, and a grid of ten thousand points.

    python benchmarks/planner_speed.py [MODEL]

Rival in the same run: DeepSpeed's own estimator arithmetic for ZeRO-3 (`estimate_zero3_model_states_mem_needs`),
which knows weights and optimizer state only. Nothing is cached before the clock starts.
"""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import replace

import planner
from planner.grid.counts import _counts
from planner.grid.grid import table
from planner.grid.profile import _profile


def grid_axes() -> dict[str, list[object]]:
    return {
        "zero_stage": [0, 1, 2, 3],
        "offload_optimizer": ["none", "cpu"],
        "offload_param": ["none", "cpu"],
        "gradient_checkpointing": [False, True],
        "liger": [False, True],
        "world_size": [1, 2, 4, 8],
        "micro_batch": [1, 2, 4, 8, 16, 32],
        "seq_len": [512, 1024, 2048, 4096, 8192],
        "grad_accum": [1, 2, 8],
    }


def zero3_states_bytes(total: int, largest: int, world: int) -> float:
    """DeepSpeed 0.19.8 runtime/zero/stage3.py, nothing offloaded."""
    return 4 * largest + 18 * total / world


def main() -> None:
    """Print the figures."""
    model = sys.argv[1] if len(sys.argv) > 1 else "llama3_1_8b"
    base = {"hf_config": planner.model_config(model), "method": "full", "world_size": 8, "zero_stage": 3}
    case = planner.parse_training_case({**base, "micro_batch": 1, "seq_len": 2048})
    began = time.perf_counter()
    importlib.import_module("pandas")
    print(f"pandas:        imported in {time.perf_counter() - began:.3f} s, once a process")
    began = time.perf_counter()
    points = table(case, grid_axes())
    seconds = time.perf_counter() - began
    print(
        f"grid, cold:    {len(points):6} points in {seconds:.3f} s ({seconds / len(points) * 1e6:.1f} us a point)"
    )
    began = time.perf_counter()
    points = table(replace(case, micro_batch=2), grid_axes())
    warm = time.perf_counter() - began
    print(
        f"grid, warm:    {len(points):6} points in {warm:.3f} s ({warm / len(points) * 1e6:.1f} us a point)"
    )
    began = time.perf_counter()
    for number in range(len(points)):
        zero3_states_bytes(8_030_261_248, 525_336_576, 1 + number % 64)
    rival = time.perf_counter() - began
    print(
        f"rival's sum:   {len(points):6} points in {rival:.3f} s; the grid takes {seconds / rival:.0f} x as long"
    )
    for name, change in {"first": {}, "another length": {"seq_len": 1024}, "the same again": {}}.items():
        began = time.perf_counter()
        forecast = planner.predict(
            {**base, "micro_batch": 1, "seq_len": 2048, "gradient_checkpointing": True, **change}
        )
        peak = forecast.peak_allocated_bytes / 2**30
        print(f"predict, {name:15} {peak:7.2f} GiB in {1e3 * (time.perf_counter() - began):8.2f} ms")
    for name, length in (("first", 2048), ("another length", 1024), ("a third", 4096)):
        began = time.perf_counter()
        answer = planner.predict(
            {**base, "micro_batch": 1, "seq_len": length, "gradient_checkpointing": True}, tier="estimate"
        )
        seconds = time.perf_counter() - began
        print(f"estimate, {name:14} {answer.peak_bytes / 2**30:7.2f} GiB in {1e3 * seconds:8.2f} ms")
    print(f"profiles: {_profile.cache_info().currsize}, counts: {_counts.cache_info().currsize}")


if __name__ == "__main__":
    main()
