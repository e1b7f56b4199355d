"""Training cases for what was repaired last, for families never measured, and around the boundary of failure.

    python benchmarks/validation_fresh.py > CASES.jsonl
    python benchmarks/validation_fresh.py --boundary > CASES.jsonl    limits just below and above the forecast
    python benchmarks/validation_fresh.py --speed > CASES.jsonl       to be timed alone

Forecast them first (`python -m planner predict CASES.jsonl`), keep the answers, then measure.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from validation_cases import ALL, CHECKPOINT, FULL, QV, lora, qlora, zero
from validation_settings import BASE, FAMILIES, FP32_SUMS, ONE_B, SMALL, Row, case, checkpoint, freeze, plain

import planner

LATENT = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
DEEPSEEK = {
    **BASE, "num_key_value_heads": 12, "moe_intermediate_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "n_group": 4, "topk_group": 2, "q_lora_rank": 512, "kv_lora_rank": 256, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 1,
}  # fmt: skip
UNSEEN: dict[str, dict[str, Any]] = {
    "deepseek_v3": DEEPSEEK,
    "deepseek_v2": {**DEEPSEEK, "q_lora_rank": None},
    "olmo3": BASE,
    "seed_oss": {**BASE, "head_dim": 128},
    "ministral3": {**BASE, "head_dim": 128},
    "cohere2": {**BASE, "head_dim": 128},
    "glm": {**BASE, "head_dim": 128, "pad_token_id": 0},
    "gpt_bigcode": {"n_embd": 1536, "n_layer": 10, "n_head": 12, "vocab_size": 49152},
}
HALF_B, TINY, WIDE = "qwen2_5_0_5b", "tinyllama_1_1b", "qwen3_1_7b"

REPAIRED: list[Row] = [
    (ONE_B, FULL, 4, 1, 2, 512, {"deepspeed": FP32_SUMS, "grad_accum": 4, **CHECKPOINT}),
    (TINY, lora(16, ALL), 4, 3, 4, 512, CHECKPOINT),
    (HALF_B, lora(16, QV), 1, 2, 4, 1024, checkpoint("deepspeed", cpu=True)),
    (HALF_B, FULL, 2, 3, 4, 1024, {"liger": True}),
    (SMALL, FULL, 2, 3, 2, 1024, zero(memory_efficient_linear=False)),
    (ONE_B, freeze(4), 4, 3, 4, 1024, CHECKPOINT),
    (ONE_B, lora(8, QV), 4, 3, 8, 512, {**CHECKPOINT, "expandable_segments": True}),
    (TINY, qlora(8, QV, double=False, prepared=True), 1, 2, 4, 512, CHECKPOINT),
    (HALF_B, FULL, 1, 0, 4, 512, {**plain("torch_adamw_fused"), **CHECKPOINT}),
    (TINY, lora(32, ALL, use_dora=True), 2, 2, 2, 1024, CHECKPOINT),
    (WIDE, FULL, 8, 3, 2, 1024, {"optimizer": "adamw_8bit", **CHECKPOINT}),
    (WIDE, lora(64, ALL), 2, 2, 2, 1024, {"packed": True, "liger": True}),
]
SPEED: list[Row] = [
    (WIDE, FULL, 1, 2, 4, 1024, CHECKPOINT),
    (HALF_B, FULL, 1, 2, 8, 1024, {}),
    (TINY, lora(8, ALL), 1, 2, 4, 2048, {}),
    ("gemma3_1b", FULL, 1, 2, 2, 1024, CHECKPOINT),
    ("mistral_7b_v0_3", qlora(4, ALL, double=True, prepared=True), 1, 2, 2, 1024, CHECKPOINT),
    ("llama3_2_3b", FULL, 1, 3, 2, 1024, {}),
    (TINY, FULL, 1, 2, 4, 1024, {"offload_optimizer": "cpu", **CHECKPOINT}),
    ("pythia_1_4b", FULL, 1, 2, 4, 1024, {}),
]
BOUNDARY: list[Row] = [
    (WIDE, FULL, 4, 2, 2, 1024, CHECKPOINT),
    (HALF_B, FULL, 1, 2, 4, 1024, {}),
    ("llama3_2_3b", lora(16, ALL), 2, 3, 2, 1024, CHECKPOINT),
    (TINY, qlora(4, QV, double=True, prepared=False), 1, 2, 4, 1024, {}),
    ("gemma3_1b", FULL, 2, 3, 2, 1024, CHECKPOINT),
    (ONE_B, FULL, 2, 2, 4, 1024, {"liger": True}),
]


def unseen() -> list[Row]:
    """Each family fully trained at stage 2, and with adapters at stage 3 and checkpointing."""
    FAMILIES.update(UNSEEN)
    rows: list[Row] = []
    for family in UNSEEN:
        targets = LATENT if "deepseek" in family else ALL
        rows += [(family, FULL, 2, 2, 2, 1024, {}), (family, lora(8, targets), 2, 3, 4, 1024, CHECKPOINT)]
    return rows


def bounded(row: Row) -> list[Row]:
    """The setting under memory limits 2 % below and above what the planner says it needs."""
    model, method, *numbers, more = row
    asked = planner.parse_training_case(case(model, method, tuple(numbers), more))
    forecast = planner.forecast_training(asked)
    required_gib = forecast.required_bytes / 2**30
    return [
        (*row[:-1], {**more, "memory_limit_gib": round(required_gib * share, 2)})  # type: ignore[misc]
        for share in (0.98, 1.02)
    ]


def main() -> None:
    """Print the cases."""
    if "--speed" in sys.argv:
        letter, rows = "p", SPEED
    elif "--boundary" in sys.argv:
        letter, rows = "b", [limited for row in BOUNDARY for limited in bounded(row)]
    else:
        letter, rows = "x", REPAIRED + unseen()
    for number, row in enumerate(rows, start=1):
        model, method, *numbers, more = row
        print(
            json.dumps(
                {
                    "id": f"{letter}{number:03}",
                    "name": model,
                    "case": case(model, method, tuple(numbers), more),
                }
            )
        )


if __name__ == "__main__":
    main()
