"""Training cases for settings and families that earlier rows do not cover, one JSON object a line.

    python benchmarks/validation_settings.py > CASES.jsonl
    python benchmarks/validation_settings.py --speed > CASES.jsonl     a few to be timed alone

Forecast them first (`python -m planner predict CASES.jsonl`), keep the answers, then measure.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from validation_cases import ALL, CHECKPOINT, FULL, QV, config_of, lora, qlora, zero

Row = tuple[str, dict[str, Any], int, int, int, int, dict[str, Any]]
ONE_B = "llama3_2_1b"
SMALL = "qwen3_0_6b"
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}


def checkpoint(kind: str, **more: Any) -> dict[str, Any]:
    return {**CHECKPOINT, "checkpointing": {"kind": kind, **more}}


def freeze(layers: int) -> dict[str, Any]:
    return {"method": "freeze", "freeze": {"last_layers": layers}}


def plain(optimizer: str) -> dict[str, Any]:
    return {"engine": "plain", "optimizer": optimizer}


# model, method, world size, stage, micro-batch, length, what else
SETTINGS: list[Row] = [
    (ONE_B, FULL, 1, 2, 2, 1024, {"optimizer": "adamw_8bit"}),
    (SMALL, FULL, 4, 3, 2, 1024, {"optimizer": "adamw_8bit", **CHECKPOINT}),
    (SMALL, FULL, 1, 0, 2, 512, {"optimizer": "adamw_8bit"}),
    (ONE_B, FULL, 1, 2, 1, 1024, {"optimizer": "paged_adamw_8bit", **CHECKPOINT}),
    (ONE_B, FULL, 2, 2, 1, 1024, {"optimizer": "lion", **CHECKPOINT}),
    (SMALL, FULL, 2, 3, 2, 1024, {"optimizer": "lion"}),
    (ONE_B, FULL, 1, 2, 1, 1024, {"optimizer": "sgd"}),
    (ONE_B, FULL, 2, 2, 1, 1024, {"optimizer": "adafactor", **CHECKPOINT}),
    (ONE_B, FULL, 2, 3, 1, 512, {"optimizer": "torch_adamw_fused"}),
    (ONE_B, FULL, 1, 0, 1, 1024, {**plain("torch_adamw"), **CHECKPOINT}),
    (ONE_B, lora(8, ALL), 1, 0, 2, 1024, plain("adamw_8bit")),
    (SMALL, FULL, 1, 0, 2, 1024, plain("adafactor")),
    (ONE_B, lora(8, QV), 1, 2, 4, 1024, checkpoint("reentrant")),
    (ONE_B, FULL, 2, 3, 2, 1024, checkpoint("reentrant")),
    (ONE_B, FULL, 1, 2, 4, 1024, checkpoint("deepspeed")),
    (SMALL, lora(8, ALL), 1, 2, 8, 1024, {**checkpoint("deepspeed", cpu=True), "liger": True}),
    (SMALL, FULL, 2, 2, 4, 1024, {"loss": "chunked", **CHECKPOINT}),
    (SMALL, lora(8, ALL), 2, 3, 4, 1024, {"loss": "chunked"}),
    (ONE_B, FULL, 2, 2, 4, 1024, {"liger": True, "liger_kernels": ["fused_linear_cross_entropy"]}),
    (ONE_B, lora(8, ALL), 1, 2, 4, 1024, {"liger": True, "liger_kernels": ["rms_norm", "swiglu"]}),
    (ONE_B, lora(8, ALL), 2, 3, 4, 1024, {"liger": True}),
    (ONE_B, FULL, 2, 2, 2, 1024, {"packed": True}),
    (ONE_B, lora(8, ALL), 2, 3, 4, 1024, {"packed": True, **CHECKPOINT}),
    (ONE_B, lora(8, ALL), 1, 2, 4, 512, {"padded": True, "attention": "eager"}),
    (ONE_B, freeze(4), 2, 2, 4, 1024, CHECKPOINT),
    (ONE_B, freeze(6), 2, 3, 2, 1024, {}),
    ("qwen2_5_0_5b", freeze(6), 1, 0, 2, 1024, {}),
    (ONE_B, lora(8, ALL), 1, 2, 2, 1024, {"dtype": "fp16"}),
    (SMALL, FULL, 1, 3, 2, 1024, {"dtype": "fp16", **CHECKPOINT}),
    (ONE_B, FULL, 2, 1, 1, 1024, {"deepspeed": FP32_SUMS, "grad_accum": 2, **CHECKPOINT}),
    (ONE_B, FULL, 2, 2, 1, 1024, {"deepspeed": FP32_SUMS, "grad_accum": 2}),
    (ONE_B, FULL, 2, 3, 1, 1024, {"deepspeed": FP32_SUMS, "grad_accum": 2, **CHECKPOINT}),
    (ONE_B, lora(8, QV, use_dora=True), 1, 2, 2, 1024, CHECKPOINT),
    (SMALL, lora(16, ALL, use_dora=True), 1, 2, 2, 1024, {}),
    ("tinyllama_1_1b", lora(8, QV, modules_to_save=["embed_tokens", "lm_head"]), 2, 2, 2, 1024, CHECKPOINT),
    (SMALL, lora(8, QV, train_base=True), 1, 2, 2, 1024, {}),
    (ONE_B, FULL, 2, 3, 1, 1024, {"offload_optimizer": "nvme", **CHECKPOINT}),
    (
        ONE_B, FULL, 2, 3, 1, 1024,
        {"offload_optimizer": "cpu", **CHECKPOINT, **zero(sub_group_size=1e8, offload_optimizer={"ratio": 0.5})},
    ),
    (ONE_B, lora(8, ALL), 2, 3, 2, 1024, {"offload_optimizer": "cpu", "offload_param": "cpu", **CHECKPOINT}),
    (ONE_B, FULL, 2, 2, 1, 1024, {"offload_optimizer": "cpu", "grad_accum": 4}),
    (SMALL, qlora(8, ALL, double=False, prepared=True), 1, 2, 2, 1024, {}),
    (ONE_B, qlora(8, QV, double=False, prepared=True), 1, 2, 2, 1024, CHECKPOINT),
    (SMALL, qlora(4, ALL, double=False, prepared=False), 2, 2, 4, 1024, CHECKPOINT),
    (ONE_B, lora(8, QV), 2, 3, 2, 1024, zero(memory_efficient_linear=False)),
    (
        ONE_B, FULL, 4, 3, 1, 1024,
        zero(reduce_bucket_size=4194304, stage3_prefetch_bucket_size=3774873, stage3_param_persistence_threshold=20480),
    ),
    (ONE_B, FULL, 4, 3, 2, 1024, {**CHECKPOINT, "expandable_segments": True}),
    (SMALL, lora(8, ALL), 2, 3, 4, 1024, {**CHECKPOINT, "expandable_segments": True}),
    (SMALL, FULL, 2, 2, 2, 2048, {**CHECKPOINT, "expandable_segments": True}),
    ("gemma3_1b", lora(8, ALL), 2, 2, 2, 1024, {**CHECKPOINT, "expandable_segments": True}),
]  # fmt: skip

BASE = {
    "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 10, "num_attention_heads": 12,
    "num_key_value_heads": 4, "vocab_size": 49152, "max_position_embeddings": 4096, "use_cache": False,
}  # fmt: skip
MHA = {**BASE, "num_key_value_heads": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    "granite": BASE,
    "olmo2": BASE,
    "olmo": MHA,
    "smollm3": BASE,
    "starcoder2": BASE,
    "stablelm": MHA,
    "cohere": BASE,
    "glm4": {**BASE, "head_dim": 128},
    "phi": MHA,
    "gpt_neox": {**MHA, "intermediate_size": 6144},
    "falcon": {
        "hidden_size": 1536, "num_hidden_layers": 10, "num_attention_heads": 12, "vocab_size": 49152,
        "new_decoder_architecture": True, "num_kv_heads": 4, "use_cache": False,
    },
    "bloom": {"hidden_size": 1536, "n_layer": 10, "n_head": 12, "vocab_size": 49152, "use_cache": False},
    "gemma": {**BASE, "head_dim": 128},
    "qwen3_moe": {
        **BASE, "head_dim": 128, "moe_intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 4,
        "norm_topk_prob": True,
    },
    "qwen2_moe": {
        **BASE, "moe_intermediate_size": 512, "num_experts": 12, "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 2048,
    },
    "olmoe": {**BASE, "intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 4},
}  # fmt: skip

# Timed alone on the GPU: what the speed forecast is checked on.
SPEED: list[Row] = [
    (ONE_B, FULL, 1, 2, 4, 1024, {}),
    (ONE_B, FULL, 1, 3, 4, 1024, CHECKPOINT),
    (ONE_B, lora(16, ALL), 1, 2, 8, 1024, CHECKPOINT),
    (ONE_B, FULL, 1, 2, 2, 1024, {"offload_optimizer": "cpu"}),
    (ONE_B, FULL, 1, 3, 2, 1024, {"offload_optimizer": "cpu", "offload_param": "cpu", **CHECKPOINT}),
    ("qwen2_5_7b", lora(8, ALL), 1, 2, 2, 2048, CHECKPOINT),
    ("qwen2_5_3b", FULL, 1, 2, 2, 2048, {"liger": True}),
    (ONE_B, qlora(4, ALL, double=True, prepared=False), 1, 2, 8, 1024, CHECKPOINT),
    (SMALL, FULL, 1, 2, 1, 512, {}),
    (ONE_B, FULL, 1, 2, 2, 1024, {"attention": "eager"}),
    (ONE_B, FULL, 1, 2, 2, 1024, {"grad_accum": 8}),
]


def case(
    model: str, method: dict[str, Any], numbers: tuple[int, int, int, int], more: dict[str, Any]
) -> dict[str, Any]:
    world, stage, micro, length = numbers
    config = {"model_type": model, **FAMILIES[model]} if model in FAMILIES else config_of(model)
    return {
        "hf_config": config, **method, "world_size": world, "zero_stage": stage, "micro_batch": micro,
        "seq_len": length, "dtype": "bf16", **more,
    }  # fmt: skip


def family_rows() -> list[Row]:
    """Each family fully trained at stage 2, and with adapters at stage 3 and checkpointing."""
    rows: list[Row] = []
    for family, config in FAMILIES.items():
        rows.append((family, FULL, 2, 2, 2, 1024, {}))
        targets = QV if "num_experts" in config else ALL  # peft refuses stacked experts
        rows.append((family, lora(8, targets), 2, 3, 4, 1024, CHECKPOINT))
    return rows


def main() -> None:
    """Print the cases."""
    speed = "--speed" in sys.argv
    for number, row in enumerate(SPEED if speed else SETTINGS + family_rows(), start=1):
        model, method, *numbers, more = row
        name = f"{'s' if speed else 'w'}{number:03}"
        content = case(model, method, tuple(numbers), more)
        print(json.dumps({"id": name, "name": model, "case": content}))


if __name__ == "__main__":
    main()
