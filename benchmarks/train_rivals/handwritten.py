"""(a) The loop that one writes by hand: DeepSpeed's engine, a DataLoader, and nothing else.

In its fastest form: rows are tensors before training begins, padding stands on the right where causal attention
never looks and so needs no mask, no loss is read and nothing is logged.
"""

from __future__ import annotations

from typing import Any

from benchmarks.train_rivals.common import load_model, load_tokens
from benchmarks.train_rivals.job import Job


def train(job: Job) -> None:
    """Forward, backward, step."""
    import deepspeed
    import torch
    from torch.utils.data import DataLoader

    deepspeed.init_distributed("nccl" if job.device == "cuda" else "gloo")
    torch.manual_seed(job.seed)
    model = load_model(job)
    engine, *_ = deepspeed.initialize(
        model=model,
        config=job.ds_config,
        model_parameters=[weight for weight in model.parameters() if weight.requires_grad],
    )
    rows = [(torch.tensor(row["input_ids"]), torch.tensor(row["labels"])) for row in load_tokens(job)]
    loader = DataLoader(rows, batch_size=job.micro_batch, collate_fn=collate, pin_memory=job.device == "cuda")
    engine.train()
    for batch in loader:
        moved = {key: value.to(engine.device, non_blocking=True) for key, value in batch.items()}
        loss = engine(**moved).loss
        engine.backward(loss)
        engine.step()


def collate(rows: list[Any]) -> dict[str, Any]:
    """Pad to the longest row."""
    from torch.nn.utils.rnn import pad_sequence

    ids, labels = zip(*rows, strict=True)
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }
