"""Train adapters over a tiny base of bitsandbytes at ZeRO stage 3 and print the bytes that were alive.

Run by tests/integration/test_packed_bytes.py, once a rank.
"""

from __future__ import annotations

import gc
import json
import os
from typing import Any

from shard_steps import CONFIG, TOKENS, live_counter

ZERO = {
    "stage": 3,
    "reduce_bucket_size": 1_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 1_000,
}
RANK = 8
STEPS = 2


def packed_model(bits: int) -> Any:
    """The model as the worker hands it to DeepSpeed: packed, other weights in fp32, adapters in bf16."""
    import torch
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    shape = {key: value for key, value in CONFIG.items() if key != "model_type"}
    drawn = LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16)
    settings = {"load_in_8bit": True}
    if bits == 4:
        settings = {
            "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": torch.bfloat16, "bnb_4bit_quant_storage": torch.bfloat16,
        }  # fmt: skip
    model = LlamaForCausalLM.from_pretrained(
        None, config=drawn.config, state_dict=drawn.state_dict(), dtype=torch.bfloat16,
        quantization_config=BitsAndBytesConfig(**settings), device_map={"": "cpu"}, attn_implementation="eager",
    )  # fmt: skip
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    lora = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.data = weight.data.to(torch.bfloat16)
    return model.train()


def steps(bits: int, ranks: int) -> dict[str, int]:
    """Bytes alive once each phase is over, and the peak of each backward pass."""
    import deepspeed
    import torch

    live = live_counter()
    with live:
        model = packed_model(bits)
        gc.collect()
        found = {"load": live.now()}
        adam = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
        settings = {
            "train_micro_batch_size_per_gpu": 1, "train_batch_size": ranks, "bf16": {"enabled": True},
            "zero_optimization": ZERO, "optimizer": adam,
        }  # fmt: skip
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=trained)
        gc.collect()
        found["engine start"] = live.now()
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        for step in range(1, STEPS + 1):
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            found[f"forward {step}"] = live.peak = live.now()
            engine.backward(loss)
            found |= {f"backward {step}": live.now(), f"peak of backward {step}": live.peak}
            del loss
            engine.step()
            found[f"step {step}"] = live.now()
    return found


def main() -> None:
    """Run both packings on this rank."""
    import deepspeed
    import deepspeed.ops
    import torch.distributed as dist

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled
    deepspeed.init_distributed("gloo")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for bits in (4, 8):
        found = steps(bits, ranks)
        if rank == 0:
            event = {"event": "steps", "bits": bits, "world_size": ranks, "bytes": found}
            print("@llmsys " + json.dumps(event), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an ordinary exit


if __name__ == "__main__":
    main()
