"""Train a tiny model for a step under DeepSpeed on the CPU, save a checkpoint, and print the bytes of its files.

Arguments: a folder, then cases `METHOD-STAGE`; run by tests/integration/test_checkpoint_bytes.py, once a rank.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

CONFIG = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
TARGETS = ["q_proj", "v_proj"]
TOKENS = 16
RANKS = 2


def model_of(method: str) -> Any:
    """A random Llama, with adapters for `lora`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    shape = {key: value for key, value in CONFIG.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape)).to(torch.bfloat16)
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules=TARGETS)).to(torch.bfloat16)
    return model


def save(method: str, stage: int, folder: Path) -> None:
    """One step, then a checkpoint."""
    import deepspeed
    import torch

    model = model_of(method)
    trained = [one for one in model.parameters() if one.requires_grad]
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 100_000},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trained), config=settings)
    ids = torch.arange(TOKENS)[None, :]
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    engine.save_checkpoint(str(folder), tag="last")


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of the files of weights and of the optimizer's."""
    found = {"weights": 0, "optimizer": 0}
    for one in (folder / "last").glob("*.pt"):
        found["optimizer" if "optim_states" in one.name else "weights"] += one.stat().st_size
    return found


def main() -> None:
    """One of the ranks, over gloo; the first one prints."""
    import deepspeed
    import torch

    folder, names = Path(sys.argv[1]), sys.argv[2:]
    # Not worth a minute of compiling: DeepSpeed's collectives over shared memory.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    for name in names:
        method, stage = name.split("-")
        save(method, int(stage), folder / name)
        torch.distributed.barrier()
        if os.environ["RANK"] == "0":
            event = {"event": "saved", "case": name, **sizes(folder / name)}
            print("@llmsys " + json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
