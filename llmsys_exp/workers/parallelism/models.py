"""The small model, the stages it is cut into, its loss and its batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from llmsys_exp.errors import UserError


def build(config: Any, *, seed: int, device: Any) -> Any:
    """Build the model with random weights in fp32, the same ones for the same seed on every rank."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    return model.to(device).train()


class Stage(nn.Module):
    """Some layers of a Llama, with the embedding before the first and the output layer behind the last."""

    def __init__(self, model: Any, layers: Sequence[int], *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        decoder = model.model
        self.embed = decoder.embed_tokens if is_first else nn.Identity()
        self.layers = nn.ModuleList(decoder.layers[number] for number in layers)
        self.rotary = decoder.rotary_emb
        self.norm = decoder.norm if is_last else nn.Identity()
        self.head = model.lm_head if is_last else nn.Identity()

    def forward(self, hidden: Any) -> Any:
        """Take token ids or hidden states and return hidden states or logits."""
        hidden = self.embed(hidden)
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        angles = self.rotary(hidden, position_ids=positions)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=angles, position_ids=positions)
        return self.head(self.norm(hidden))


def next_token_loss(logits: Any, ids: Any) -> Any:
    """Mean over all tokens but the first of each sequence."""
    return functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def make_batches(file: Path, *, steps: int, sequences: int, length: int) -> list[Any]:
    """Cut a file's bytes into batches of token ids.

    Raises:
        UserError: when the file is too short.
    """
    content, wanted = file.read_bytes(), steps * sequences * length
    if len(content) < wanted:
        raise UserError(
            f"{wanted} bytes are needed, the file has {len(content)}",
            where=f"data.train={file}",
            do="Lower training.max_steps, training.global_batch or data.max_length",
        )
    ids = torch.tensor(list(content[:wanted])).view(steps, sequences, length)
    return [one.clone() for one in ids]
