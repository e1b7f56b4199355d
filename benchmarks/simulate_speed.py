"""Processor time and error of the tier `simulate`, beside PyTorch's own memory tracker.

    python benchmarks/simulate_speed.py [--ours]        --ours: without the rival, which takes minutes

Rival in the same run: `torch.distributed._tools.mem_tracker.MemTracker` under `FakeTensorMode`, with the same model,
optimizer and batch, over two plain steps, as ours (the optimizer's state is there in the second alone). It knows neither
DeepSpeed nor the allocator, so it is asked about plain loops. Imports are not counted; both have run once before.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import planner
from benchmarks.measured import measured_rows
from planner.simulate.quiet import load_deepspeed, quiet
from planner.units import GIB

MEASURED = ("w010", "x009")
"""Plain loops with AdamW: rows that both can be compared with."""
LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
}
LLAMA_2_70B = {
    **LLAMA_2_7B,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
BASE: dict[str, Any] = {
    "hf_config": LLAMA_2_7B,
    "method": "full",
    "world_size": 8,
    "micro_batch": 1,
    "seq_len": 1024,
}
LORA = {"method": "lora", "lora": {"r": 16, "target_modules": "all-linear"}}
AGAIN = {"gradient_checkpointing": True}
JOBS: dict[str, dict[str, Any]] = {
    "7B, stage 0": {**BASE, "zero_stage": 0},
    "7B, stage 1": {**BASE, "zero_stage": 1},
    "7B, stage 2": {**BASE, "zero_stage": 2},
    "7B, stage 3": {**BASE, "zero_stage": 3},
    "7B, stage 3, recomputed": {**BASE, "zero_stage": 3, **AGAIN},
    "7B, stage 3, 2 ranks": {**BASE, "zero_stage": 3, "world_size": 2},
    "7B, stage 3, optimizer on the CPU": {**BASE, "zero_stage": 3, "offload_optimizer": "cpu"},
    "7B, stage 3, LoRA": {**BASE, "zero_stage": 3, **LORA},
    "7B, stage 3, LoRA, recomputed": {**BASE, "zero_stage": 3, **LORA, **AGAIN},
    "70B, stage 3, 512 ranks": {**BASE, "hf_config": LLAMA_2_70B, "zero_stage": 3, "world_size": 512},
}
PLAIN = {**BASE, "world_size": 1, "engine": "plain", "zero_stage": 0, "optimizer": "torch_adamw"}
WARM = {**PLAIN, "hf_config": {**LLAMA_2_7B, "num_hidden_layers": 1}}


def ours(case: dict[str, Any]) -> float:
    """The simulation's peak of a job in GiB."""
    forecast = planner.predict(case, tier="simulate")
    assert isinstance(forecast, planner.Forecast)
    return forecast.peak_allocated_bytes / GIB


def rival(case: dict[str, Any]) -> float:
    """The tracker's peak of the same plain loop in GiB."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import AutoModelForCausalLM

    from planner.simulate.unknown import transformers_config

    config = transformers_config(dict(case["hf_config"]))
    with FakeTensorMode(), quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        if case.get("gradient_checkpointing"):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        fused = case["optimizer"] == "torch_adamw_fused"
        optimizer = torch.optim.AdamW(model.parameters(), foreach=not fused, fused=fused)
        ids = torch.zeros(case["micro_batch"], case["seq_len"], dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    (device,) = tracker.get_tracker_snapshot("peak").values()
    return device["Total"] / GIB


def timed(answer: Callable[[dict[str, Any]], float], case: dict[str, Any]) -> tuple[float, float]:
    """Processor seconds, and the answer in GiB."""
    gc.collect()
    began = time.process_time()
    gib = answer({**case, "memory_limit_gib": None})
    return time.process_time() - began, gib


def compare(name: str, case: dict[str, Any], measured_gib: float | None) -> None:
    """Print both on a plain loop."""
    (seconds, gib), (rival_s, rival_gib) = timed(ours, case), timed(rival, case)

    def off(found: float) -> str:
        return f"{100 * (found / measured_gib - 1):+.2f} %" if measured_gib else f"{found:.2f} GiB"

    ratio = f"{rival_s / seconds:.1f} x"
    print(
        f"{name:36}{seconds:8.2f} s{rival_s:9.2f} s{ratio:>9}{off(gib):>12}{off(rival_gib):>14}", flush=True
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ours", action="store_true", help="leave the rival out")
    alone = parser.parse_args().ours
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    load_deepspeed()
    ours(WARM)
    if not alone:
        rival(WARM)
        print(f"{'plain loop':36}{'ours':>10}{'tracker':>11}{'ratio':>9}{'ours off':>12}{'tracker off':>14}")
        for row in measured_rows():
            if row["id"] in MEASURED:
                compare(f"{row['id']}, measured", row["case"], row["measured"]["peak_allocated_gib"])
        compare("7B, not measured", PLAIN, None)
    print(f"{'job':36}{'ours':>10}{'GiB a rank':>12}{'most of this process, GiB':>28}")
    for name, job in JOBS.items():
        seconds, gib = timed(ours, job)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        print(f"{name:36}{seconds:8.2f} s{gib:12.2f}{used:28.2f}", flush=True)


if __name__ == "__main__":
    main()
