"""Batches, and several examples in one sequence: the same loss and gradients as apart."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from learning import loss_and_gradients

from llmsys_exp.errors import UserError
from llmsys_exp.workers.data.apart import check_kept_apart
from llmsys_exp.workers.data.collate import collate
from llmsys_exp.workers.data.example import IGNORED, Example, Examples
from llmsys_exp.workers.data.packing import PackedExamples, pack

PAD = 0


def random_examples(lengths: list[int], seed: int = 0) -> Examples:
    """Examples whose second half is learnt."""
    numbers = np.random.default_rng(seed)
    parts = [(numbers.integers(1, 90, n), np.arange(n) >= max(1, n // 2)) for n in lengths]
    return Examples.joined(parts)


def test_examples_come_back_as_they_were_put_in():
    some = random_examples([5, 9, 2])
    assert len(some) == 3 and some.lengths.tolist() == [5, 9, 2]
    assert [len(one.ids) for one in some] == [5, 9, 2] and len(some[-1].ids) == 2
    assert [len(one.ids) for one in some[1:]] == [9, 2]
    with pytest.raises(IndexError):
        some[3]
    first = some[0]
    assert first.prompt_ids + first.answer_ids == tuple(first.ids.tolist())
    assert first.label_count == len(first.answer_ids) == 3
    assert first.labels.tolist() == [IGNORED, IGNORED, *first.answer_ids]


def test_sizes_are_known_without_making_a_sequence(monkeypatch):
    some = random_examples([5, 9, 2, 7, 3, 3])
    packed = PackedExamples(some, max_length=12, seed=0)
    assert any(len(one) > 1 for one in packed.bins)
    for data in (some, packed):
        made = list(data)
        lengths = [one.lengths or (len(one.ids),) for one in made]
        with monkeypatch.context() as patch:
            patch.setattr(type(data), "_made", None)  # any sequence that is made would fail
            assert data.learnt_counts.tolist() == [one.label_count for one in made]
            assert data.lengths.tolist() == [len(one.ids) for one in made]
            assert data.pairs.tolist() == [sum(n * n for n in one) for one in lengths]
    assert packed.pairs.sum() == some.pairs.sum() < (packed.lengths**2).sum()
    assert [one.ids.tolist() for one in packed[-2:]] == [packed[-2].ids.tolist(), packed[-1].ids.tolist()]
    with pytest.raises(IndexError):
        packed[len(packed)]


def test_a_batch_is_padded_on_the_right_without_labels_there():
    batch = collate(random_examples([5, 9]), pad_id=PAD)
    assert set(batch) == {"input_ids", "labels"}
    assert batch["input_ids"].shape == (2, 9) and str(batch["input_ids"].dtype) == "torch.int64"
    assert batch["input_ids"][0, 5:].tolist() == [PAD] * 4
    assert batch["labels"][0, 5:].tolist() == [IGNORED] * 4


@pytest.mark.parametrize(("most", "width"), [(None, 16), (12, 12), (9, 9)])
def test_a_width_is_rounded_up_but_not_beyond_what_was_planned(most, width):
    batch = collate(random_examples([5, 9]), pad_id=PAD, multiple=8, most=most)
    assert batch["input_ids"].shape == (2, width)
    assert batch["labels"][1, 9:].tolist() == [IGNORED] * (width - 9)


def test_a_loader_of_torch_takes_examples_and_batches_as_they_are():
    from functools import partial

    from torch.utils.data import DataLoader

    some = random_examples([5, 9, 3, 4])
    loader = DataLoader(some, batch_sampler=[[0, 2], [1, 3]], collate_fn=partial(collate, pad_id=PAD))
    assert [tuple(batch["input_ids"].shape) for batch in loader] == [(2, 5), (2, 9)]


@pytest.mark.parametrize("count", [1, 40, 9000])
def test_packing_loses_nothing_overfills_nothing_and_is_the_same_each_time(count):
    lengths = np.random.default_rng(1).integers(1, 65, count)
    bins = pack(lengths, max_length=64, seed=3)
    assert Counter(int(one) for each in bins for one in each) == Counter(range(count))
    assert max(lengths[each].sum() for each in bins) <= 64
    assert [each.tolist() for each in bins] == [
        each.tolist() for each in pack(lengths, max_length=64, seed=3)
    ]
    if count == 9000:
        assert lengths.sum() / (64 * len(bins)) > 0.97


def test_positions_begin_again_with_each_example_and_with_the_padding():
    packed = Example(np.arange(5), np.arange(5) > 2, lengths=(2, 3))
    alone = Example(np.arange(7), np.arange(7) > 2, lengths=(7,))
    batch = collate([packed, alone], pad_id=PAD, varlen=True)
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2, 0, 1], [0, 1, 2, 3, 4, 5, 6]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 2, 5, 7, 14] and batch["max_length_k"] == 7
    assert str(batch["cu_seq_lens_k"].dtype) == "torch.int32"


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    shape = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=request.param,
    )
    return LlamaForCausalLM(shape)


def largest_difference(one, other) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_packed_examples_have_the_loss_and_gradients_they_have_apart(model):
    examples = random_examples([30, 3, 17, 25, 9, 20, 2, 11, 29, 5])
    packed = PackedExamples(examples, max_length=40, seed=1)
    assert len(packed) < len(examples) and any(len(one) > 2 for one in packed.bins)
    targets = sum(one.label_count for one in examples)
    assert targets == sum(one.label_count for one in packed)
    apart = loss_and_gradients(model, [collate([one], pad_id=PAD) for one in examples], targets)
    together = loss_and_gradients(model, [collate(list(packed), pad_id=PAD)], targets)
    padded = loss_and_gradients(model, [collate(list(examples), pad_id=PAD)], targets)
    for other in (together, padded):
        assert other[0] == pytest.approx(apart[0], rel=1e-5)
        assert largest_difference(apart[1], other[1]) < 1e-6
    # the check can fail: without positions the examples see one another
    leaking = collate(list(packed), pad_id=PAD)
    del leaking["position_ids"]
    wrong = loss_and_gradients(model, [leaking], targets)
    assert abs(wrong[0] - apart[0]) > 1e-4


def test_no_example_predicts_the_first_token_of_the_next():
    whole = [(np.arange(1, n + 1), np.arange(n) > 0) for n in (4, 3)]
    packed = PackedExamples(Examples.joined(whole), max_length=8, seed=0)
    (one,) = packed[:3]
    starts = np.cumsum([0, *one.lengths[:-1]])
    assert (one.labels[starts] == IGNORED).all() and one.label_count == 5


def tiny_opt():
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(3)
    shape = {"vocab_size": 100, "hidden_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32}
    return OPTForCausalLM(
        OPTConfig(**shape, num_hidden_layers=1, num_attention_heads=4, max_position_embeddings=64)
    )


def test_a_model_that_looks_past_the_border_is_refused(model):
    check_kept_apart(model)
    opt = tiny_opt().train()
    with pytest.raises(UserError, match="OPTForCausalLM does not keep packed examples apart"):
        check_kept_apart(opt)
    assert opt.training
