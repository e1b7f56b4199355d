"""Which examples make up which step."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from llmsys_exp.workers.data.order import Order


def order(**changes) -> Order:
    return Order(**{"count": 10, "micro_batch": 2, "grad_accum": 3, "world_size": 2, "seed": 1} | changes)


LENGTHS = [7 * number % 101 + 3 for number in range(1000)]


def grouped(**changes) -> Order:
    return order(**{"count": 1000, "lengths": LENGTHS} | changes)


def test_ranks_split_each_step_without_overlap():
    one = order(count=100)
    for step in range(5):
        shares = [list(chain(*one.micro_batches(one.step(step), rank=rank))) for rank in range(2)]
        assert all(
            len(batch) == 2 for rank in range(2) for batch in one.micro_batches(one.step(step), rank=rank)
        )
        assert sorted(chain(*shares)) == sorted(one.step(step))
        assert not set(shares[0]) & set(shares[1])


@pytest.mark.parametrize("count", [10, 1000, 997, 12, 5])
@pytest.mark.parametrize("by_length", [False, True])
def test_every_example_comes_once_an_epoch(count, by_length):
    one = order(count=count, lengths=LENGTHS[:count] if by_length else None)
    stream = list(chain(*(one.step(step) for step in range(3 * count // one.global_batch + 1))))
    for epoch in range(3):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


@pytest.mark.parametrize("make", [order, grouped])
def test_the_order_hangs_on_the_seed_alone_and_any_step_can_be_asked_for_first(make):
    fresh = [make().step(step) for step in (200, 3, 90)]
    one = make()
    for step in range(91):
        one.step(step)
    assert [one.step(200), one.step(3), one.step(90)] == fresh
    assert make().step(3) == make(micro_batch=6, grad_accum=1).step(3)
    assert make().step(3) != make(seed=2).step(3)


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"),
    [(1.0, None, 9), (2.0, None, 17), (0.1, None, 1), (1.0, 4, 4), (0.01, 9, 1)],
)
def test_steps_follow_epochs_unless_max_steps_ends_the_run_first(epochs, max_steps, steps):
    assert order(count=100).steps(epochs=epochs, max_steps=max_steps) == steps


def padding(one: Order) -> float:
    """Share of tokens that pad, over one epoch of one rank."""
    lengths = np.array(LENGTHS)
    batches = [batch for step in range(80) for batch in one.micro_batches(one.step(step), rank=0)]
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    return 1 - sum(lengths[batch].sum() for batch in batches) / padded


def test_grouping_by_length_leaves_little_padding_and_still_mixes():
    assert padding(grouped(lengths=None)) > 0.2
    assert padding(grouped()) < 0.04
    means = [np.mean([LENGTHS[one] for one in grouped().step(step)]) for step in range(60)]
    # sorted batches come in shuffled order: no trend from short to long
    assert abs(np.corrcoef(means, range(60))[0, 1]) < 0.4
    assert grouped().step(0) != grouped().step(84)
