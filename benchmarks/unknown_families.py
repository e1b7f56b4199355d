"""Training cases of families that no formula of the planner knows: what the simulation is for.

    python benchmarks/unknown_families.py > CASES.jsonl

Simulate them first (`python -m planner predict CASES.jsonl --tier simulate`), keep the answers, then measure.
Each family is fully trained at stage 2, and with adapters at stage 3 and checkpointing.
"""

from __future__ import annotations

import json
from typing import Any

from validation_cases import ALL, CHECKPOINT, FULL, lora
from validation_settings import BASE, FAMILIES, case

MAMBA = {
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 256,
}  # fmt: skip
MIXERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
UNKNOWN: dict[str, dict[str, Any]] = {
    "arcee": {**BASE, "head_dim": 128},
    "helium": {**BASE, "head_dim": 128},
    "apertus": {**BASE, "hidden_act": "xielu"},
    "nemotron": {**BASE, "head_dim": 128, "hidden_act": "relu2"},
    "ernie4_5": {**BASE, "head_dim": 128},
    "gptj": {"n_embd": 1536, "n_layer": 10, "n_head": 12, "rotary_dim": 64, "vocab_size": 50400},
    "lfm2": {**BASE, "num_hidden_layers": 8, "layer_types": ["conv", "conv", "conv", "full_attention"] * 2},
    "granitemoehybrid": {
        **BASE, "num_hidden_layers": 4, "layer_types": MIXERS, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024, **MAMBA,
    },
    "glm4_moe": {
        **BASE, "num_hidden_layers": 6, "moe_intermediate_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 4,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 128,
    },
    "persimmon": {**BASE},
}  # fmt: skip
EAGER = ("gptj",)
TARGETS = {"glm4_moe": ["q_proj", "v_proj"], "granitemoehybrid": ["q_proj", "v_proj", "in_proj"]}


def main() -> None:
    """Print the cases."""
    FAMILIES.update(UNKNOWN)
    number = 0
    for family in UNKNOWN:
        adapters = lora(8, TARGETS.get(family, ALL))
        for method, shape, more in (
            (FULL, (2, 2, 2, 1024), {}),
            (adapters, (2, 3, 4, 1024), CHECKPOINT),
        ):
            number += 1
            eager = {"attention": "eager"} if family in EAGER else {}
            content = case(family, method, shape, {**more, **eager})
            print(json.dumps({"id": f"u{number:03}", "name": family, "case": content}))


if __name__ == "__main__":
    main()
