"""How SGLang divides a card."""

import pytest

import planner

CARDS = {"t4": (15360, 0.735, 0.735), "24 GB": (23034, 0.822, 0.684), "32 GB": (32510, 0.874, 0.776),
         "40 GB": (40442, 0.821, 0.821), "80 GB": (81559, 0.830, 0.830), "h200": (143771, 0.903, 0.903)}  # fmt: skip


def case(**changes):
    base = {"kind": "serve", "engine_version": "0.5.23", "hf_config": planner.model_config("qwen2_5_7b"),
            "gpu": {"total_mib": 81559}, "context_length": 16384}  # fmt: skip
    return planner.predict({**base, **changes})


@pytest.mark.parametrize(("mib", "early", "late"), CARDS.values(), ids=CARDS.keys())
def test_default_fraction_by_card_and_version(mib, early, late):
    """The 0.5.17 column was read from that release's own resolver, the other from its source."""
    found = [case(gpu={"total_mib": mib}, engine_version=v).mem_fraction_static for v in ("0.5.17", "0.5.23")]
    assert found == [early, late]


def test_tokens_follow_the_fraction():
    low, high = (case(mem_fraction_static=f) for f in (0.5, 0.8))
    assert high.kv_tokens - low.kv_tokens == pytest.approx(0.3 * 79.15 * 1024**3 / 57_344, rel=0.01)
    assert high.kv_pool_bytes == high.kv_tokens * 57_344


def test_a_fraction_below_the_weights_does_not_start_and_the_smallest_that_does_is_named():
    refused = case(mem_fraction_static=0.1)
    assert not refused.starts
    assert case(mem_fraction_static=refused.minimum_mem_fraction_static).starts


def test_a_million_tokens_of_context_cost_a_request_table():
    table = case(context_length=1_010_000, max_running_requests=2048).request_table_bytes
    assert table / 1024**3 == pytest.approx(7.71, abs=0.02)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mem_fraction_static": 1.5}, "must lie between 0 and 1"),
        ({"engine": "vllm"}, "not supported; known: sglang"),
        ({"gpu": {}}, "gpu.total_mib is missing"),
        ({"tp_size": 0}, "tp_size is 0"),
        ({"contextlength": 1}, "Did you mean context_length?"),
    ],
    ids=["fraction", "engine", "gpu", "tp", "key"],
)
def test_refused_with_the_reason(change, said):
    with pytest.raises(planner.CaseError) as refusal:
        case(**change)
    assert said in str(refusal.value)
