"""Train a tiny model at ZeRO stage 3, evaluate it, and print which weights are being gathered before and after.

Argument: a model folder; run by tests/integration/test_workers.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100},
}


def main() -> None:
    import deepspeed
    import torch
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
    from transformers import AutoModelForCausalLM

    from llmsys_exp.workers.training.engine import end_gathering

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    deepspeed.init_distributed("gloo")
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), config=CONFIG
    )
    ids = torch.arange(5, 13)[None]

    def step() -> None:
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()

    def by_status(status: Any) -> int:
        return sum(one.ds_status is status for one in model.parameters())

    for _ in range(3):  # DeepSpeed notes the order of a step, checks it in the next, then fetches ahead
        step()
    with torch.no_grad():
        model(input_ids=ids)
    found = {"in flight": by_status(ZeroParamStatus.INFLIGHT)}
    end_gathering(engine)
    found["in flight after"] = by_status(ZeroParamStatus.INFLIGHT)
    step()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
