"""A small job and what a dry run of it would tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmsys_exp.dryrun.card import Card
from llmsys_exp.dryrun.outcome import Outcome
from planner.units import GIB

SHAPE = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000, "max_position_embeddings": 512,
}  # fmt: skip
"""A small model, so that a plan takes a blink."""
SMALL = (
    "model=local", "hardware=t4", "method=lora", "zero.stage=2", "offload=none", "data.max_length=128",
    "training.gradient_checkpointing=false", "training.micro_batch=2", "data.train=x",
)  # fmt: skip
T4 = Card("0", "Tesla T4", 15 * GIB, int(14.8 * GIB), {})


def small_job(folder: Path) -> list[str]:
    """Overrides of a job whose model is in a folder, written here."""
    (folder / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    return [*SMALL, f"model.path={folder}"]


def outcome_of(survived: bool = True, *, peak_bytes: int = 2 * GIB, **more: Any) -> Outcome:
    """What a run on a GPU would have told."""
    phase = {"allocated_bytes": GIB, "peak_allocated_bytes": peak_bytes, "peak_reserved_bytes": 3 * GIB}
    oom = None if survived else {"kind": "oom_gpu", "moment": "backward", "asked": "2.00 GiB"}
    phases = dict.fromkeys(("load", "engine start", "forward", "backward", "step"), phase)
    return Outcome(survived, 0, 1, "Tesla T4", phases=phases, peak_reserved_bytes=3 * GIB, oom=oom, **more)
