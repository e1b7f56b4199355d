"""Writes training cases in places that planner/data/measured does not cover yet, one JSON object a line.

    python benchmarks/validation_cases.py > CASES.jsonl

Forecast them first (`python -m planner predict CASES.jsonl`), keep the answers, then measure.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import planner

IGNORED = ("architectures", "torch_dtype", "bos_token_id", "eos_token_id", "dual_chunk_attention_config")
MIXTRAL_SMALL = {
    "model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 4096,
}  # fmt: skip


def lora(r: int, targets: Any, **more: Any) -> dict[str, Any]:
    return {
        "method": "lora",
        "lora": {"r": r, "target_modules": targets, "dropout": 0.0, "adapter_dtype": "bf16"} | more,
    }


def qlora(bits: int, targets: Any, *, double: bool, prepared: bool) -> dict[str, Any]:
    quantization = {
        "bits": bits,
        "quant_type": "nf4",
        "double_quant": double,
        "prepare_for_kbit_training": prepared,
    }
    return {**lora(8, targets), "method": "qlora", "quantization": quantization}


FULL = {"method": "full"}
ALL = "all-linear"
QV = ["q_proj", "v_proj"]
CHECKPOINT = {"gradient_checkpointing": True}


def zero(**settings: Any) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": settings}}


# model, method, world size, stage, micro-batch, length, what else
CASES: list[tuple[str, dict[str, Any], int, int, int, int, dict[str, Any]]] = [
    ("qwen3_0_6b", FULL, 2, 2, 4, 1024, CHECKPOINT),
    ("qwen3_0_6b", FULL, 1, 0, 2, 1024, {}),
    ("qwen3_1_7b", lora(16, ALL), 4, 3, 2, 1024, CHECKPOINT),
    ("qwen3_1_7b", lora(8, QV), 1, 2, 2, 1024, {}),
    ("gemma3_1b", FULL, 2, 2, 2, 1024, {}),
    ("gemma3_1b", lora(8, ALL, dropout=0.05), 1, 2, 2, 1024, CHECKPOINT),
    ("gemma2_2b", FULL, 2, 1, 1, 512, {"attention": "eager"}),
    ("phi3_mini_4k", lora(16, ["qkv_proj", "o_proj"]), 2, 2, 2, 1024, {}),
    ("phi3_mini_4k", FULL, 8, 3, 1, 1024, CHECKPOINT),
    ("mistral_7b_v0_3", lora(16, ALL), 2, 2, 2, 1024, CHECKPOINT),
    ("llama3_2_1b", FULL, 4, 1, 4, 1024, {}),
    ("llama3_2_1b", {"method": "freeze", "freeze": {"last_layers": 4}}, 2, 2, 4, 1024, {}),
    ("llama3_2_1b", {"method": "freeze", "freeze": {"last_layers": 4}}, 2, 3, 4, 1024, CHECKPOINT),
    ("llama3_2_1b", FULL, 2, 2, 2, 1024, {"dtype": "fp32"}),
    ("llama3_2_1b", FULL, 1, 0, 1, 512, {"dtype": "fp32"}),
    ("llama3_2_1b", FULL, 2, 3, 2, 1024, {"dtype": "fp16"}),
    ("llama3_2_1b", lora(8, QV), 1, 2, 4, 1024, {"padded": True}),
    ("llama3_2_3b", FULL, 4, 3, 2, 1024, {"padded": True, **CHECKPOINT}),
    ("llama3_2_1b", lora(16, ALL, dropout=0.1), 1, 2, 4, 1024, {}),
    ("llama3_2_1b", lora(16, ALL, adapter_dtype="fp32"), 1, 2, 4, 1024, {}),
    ("llama3_2_1b", FULL, 2, 2, 2, 1024, {"offload_optimizer": "cpu"}),
    ("llama3_2_1b", FULL, 2, 1, 2, 1024, {"offload_optimizer": "cpu", **CHECKPOINT}),
    ("llama3_2_3b", lora(16, ALL), 2, 3, 2, 1024, {"offload_optimizer": "cpu", **CHECKPOINT}),
    ("llama3_2_3b", FULL, 4, 3, 2, 1024, {"offload_optimizer": "cpu", **CHECKPOINT}),
    ("llama3_2_1b", qlora(8, QV, double=False, prepared=True), 1, 2, 2, 1024, CHECKPOINT),
    ("llama3_2_1b", qlora(4, ALL, double=True, prepared=False), 2, 2, 2, 1024, {}),
    ("mixtral_small", FULL, 2, 2, 2, 1024, {}),
    ("mixtral_small", lora(8, QV), 1, 2, 2, 1024, CHECKPOINT),
    ("opt_1_3b", FULL, 2, 0, 2, 1024, CHECKPOINT),
    ("gpt2", FULL, 2, 2, 8, 1024, CHECKPOINT),
    ("qwen2_5_0_5b", FULL, 2, 3, 4, 1024, {"liger": True}),
    ("llama3_2_1b", FULL, 1, 2, 4, 2048, {"liger": True}),
    ("llama3_2_1b", FULL, 1, 0, 1, 512, {"optimizer": "torch_adamw"}),
    ("llama3_2_1b", FULL, 2, 3, 1, 512, {"optimizer": "torch_adamw"}),
    ("llama3_2_1b", FULL, 4, 2, 2, 1024, zero(overlap_comm=True)),
    ("llama3_2_1b", FULL, 4, 2, 2, 1024, zero(overlap_comm=False, reduce_bucket_size=20_000_000)),
    ("llama3_2_3b", FULL, 4, 3, 1, 1024, zero(contiguous_gradients=False)),
    ("llama3_2_1b", FULL, 1, 3, 2, 1024, {}),
    ("llama3_2_1b", FULL, 4, 3, 2, 1024, {"grad_accum": 4}),
    ("llama3_2_1b", FULL, 4, 1, 2, 1024, {"grad_accum": 4}),
    ("llama3_2_1b", FULL, 2, 2, 4, 1024, {"expandable_segments": True}),
    ("qwen2_5_7b", lora(16, ALL), 8, 3, 1, 2048, CHECKPOINT),
    ("smollm2_1_7b", FULL, 64, 3, 1, 2048, CHECKPOINT),
    ("smollm2_360m", FULL, 1, 2, 16, 256, {}),
]  # fmt: skip


def config_of(model: str) -> dict[str, Any]:
    full = MIXTRAL_SMALL if model == "mixtral_small" else planner.model_config(model)
    return {k: v for k, v in full.items() if k not in IGNORED}


def main() -> None:
    for number, (model, method, world, stage, micro, length, more) in enumerate(CASES, start=1):
        case = {
            "hf_config": config_of(model), **method, "world_size": world, "zero_stage": stage,
            "micro_batch": micro, "seq_len": length, "dtype": "bf16", **more,
        }  # fmt: skip
        sys.stdout.write(json.dumps({"id": f"v{number:03d}", "name": model, "case": case}) + "\n")


if __name__ == "__main__":
    main()
