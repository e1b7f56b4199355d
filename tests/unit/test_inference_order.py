"""In which order prompts go to an engine, and what `auto` chooses for which."""

from __future__ import annotations

import pytest

from llmsys_exp.config.schema import PromptOrder
from llmsys_exp.workers.inference.order import by_prefix, order_prompts, shared_share

LONG, OTHER = tuple(range(100, 140)), tuple(range(200, 230))
PROMPTS = [
    (1, *LONG, 5),
    (1, 2, 3),
    (1, *OTHER, 6),
    (1, *LONG, 4, 4),
    (1, 9, 9, 9, 9),
    (1, *OTHER, 5),
    (1, *LONG, 6),
]


def ordered(wanted=PromptOrder.auto, prompts=PROMPTS, limits=None, engine="sglang", batch_size="all"):
    limits = limits or [8] * len(prompts)
    return order_prompts(wanted, prompts, limits=limits, engine=engine, batch_size=batch_size)


def test_prompts_with_the_longest_common_prefixes_go_together_and_first():
    assert by_prefix(PROMPTS) == [3, 0, 6, 5, 2, 4, 1]
    assert by_prefix([]) == [] and by_prefix([(1, 2)]) == [0]


def test_what_all_prompts_share_is_no_reason_to_group_them():
    template = tuple(range(50))
    prompts = [(*template, 1), (*template, 2, 2), (*template, 3)]
    assert shared_share(prompts) == 0
    assert by_prefix(prompts) == [1, 0, 2]
    assert shared_share(PROMPTS) == pytest.approx((2 * 40 + 30) / sum(map(len, PROMPTS)))


@pytest.mark.parametrize(
    ("engine", "batch_size", "prompts", "expected"),
    [
        ("transformers", 4, PROMPTS, "length"),
        ("transformers", "all", PROMPTS, "prefix"),
        ("sglang", "all", PROMPTS, "prefix"),
        ("sglang", 4, PROMPTS, "prefix"),
        ("sglang", "all", [(1, 2), (3, 4, 5)], "length"),
    ],
)
def test_auto_sorts_by_length_for_padding_and_by_prefix_where_a_cache_gains(
    engine, batch_size, prompts, expected
):
    found = ordered(engine=engine, batch_size=batch_size, prompts=prompts)
    assert found.name == expected and found.reason != "as set"
    assert sorted(found.indices) == list(range(len(prompts)))


def test_the_most_work_goes_first_by_length():
    assert ordered(PromptOrder.length).indices == [3, 0, 6, 2, 5, 4, 1]
    assert ordered(PromptOrder.length, limits=[1, 9, 1, 1, 1, 1, 1]).indices[0] == 1
    assert (
        ordered(PromptOrder.file).indices == list(range(7)) and ordered(PromptOrder.file).reason == "as set"
    )
