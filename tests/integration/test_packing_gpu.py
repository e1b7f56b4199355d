"""Packed examples on a CUDA device: the same loss and gradients as apart, under every attention there is."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from learning import loss_and_gradients

from llmsys_exp.workers.data.apart import check_kept_apart
from llmsys_exp.workers.data.collate import collate
from llmsys_exp.workers.data.example import Examples
from llmsys_exp.workers.data.packing import PackedExamples

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

HAS_FLASH = importlib.util.find_spec("flash_attn") is not None
NEEDS_FLASH = pytest.mark.skipif(not HAS_FLASH, reason="flash-attn is not installed")


def random_examples(count: int) -> Examples:
    numbers = np.random.default_rng(0)
    lengths = numbers.integers(2, 400, count)
    return Examples.joined([(numbers.integers(1, 900, n), np.arange(n) >= max(1, n // 2)) for n in lengths])


def joined(gradients):
    import torch

    return torch.cat([one.float().flatten() for one in gradients.values()])


@pytest.mark.parametrize(
    ("attention", "dtype", "tolerance"),
    [
        ("sdpa", "float32", 1e-4),
        ("eager", "float32", 1e-4),
        ("sdpa", "bfloat16", 2e-2),
        pytest.param("flash_attention_2", "bfloat16", 2e-2, marks=NEEDS_FLASH),
    ],
)
def test_packed_examples_learn_the_same_as_apart(attention, dtype, tolerance):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    model = LlamaForCausalLM(shape).to("cuda", getattr(torch, dtype))
    varlen = attention == "flash_attention_2"
    check_kept_apart(model, varlen=varlen)
    examples = random_examples(24)
    packed = PackedExamples(examples, max_length=512, seed=1)
    targets = sum(one.label_count for one in examples)
    apart = loss_and_gradients(model, [collate([one], pad_id=0) for one in examples], targets)
    both = [list(packed)[at : at + 2] for at in range(0, len(packed), 2)]
    together = loss_and_gradients(model, [collate(one, pad_id=0, varlen=varlen) for one in both], targets)
    assert together[0] == pytest.approx(apart[0], rel=tolerance)
    wanted, found = joined(apart[1]), joined(together[1])
    assert float((found - wanted).norm() / wanted.norm()) < tolerance
