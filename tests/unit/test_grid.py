"""The grid agrees with the full play, and its parts with hand computation."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.choose import estimate_bytes, sizes_of
from planner.grid.counts import counts_of
from planner.grid.grid import blocks, table
from planner.grid.polynomial import BATCH, LENGTH, coefficients, features, highest
from planner.network.build import build_network
from planner.parsing import parse_training_case
from planner.speed import step_time

TINY = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4000,
}  # fmt: skip
SETTINGS = {
    "full": {"method": "full"},
    "full recomputed": {"method": "full", "gradient_checkpointing": True},
    "stage 2": {"method": "full", "zero_stage": 2, "world_size": 4},
    "stage 3": {"method": "full", "zero_stage": 3, "world_size": 4, "gradient_checkpointing": True},
    "lora": {"method": "lora", "lora": {"r": 8}, "zero_stage": 2},
    "qlora": {
        "method": "qlora", "lora": {"r": 8}, "zero_stage": 2, "gradient_checkpointing": True,
        "quantization": {"bits": 4, "prepare_for_kbit_training": True},
    },
    "qlora at stage 3": {
        "method": "qlora", "lora": {"r": 8}, "zero_stage": 3, "world_size": 2, "quantization": {"bits": 4},
    },
    "qlora in 8 bit at stage 3": {
        "method": "qlora", "lora": {"r": 8}, "zero_stage": 3, "world_size": 2, "gradient_checkpointing": True,
        "quantization": {"bits": 8, "prepare_for_kbit_training": True},
    },
    "freeze": {"method": "freeze", "freeze": {"last_layers": 2}, "zero_stage": 2},
    "liger": {"method": "full", "zero_stage": 2, "liger": True},
    "plain": {"method": "full", "engine": "plain", "optimizer": "torch_adamw"},
    "offload": {"method": "full", "zero_stage": 2, "world_size": 2, "offload_optimizer": "cpu"},
}  # fmt: skip

FULL = {"hf_config": TINY, "method": "full", "zero_stage": 2}


def job(**changes):
    return parse_training_case(
        {"hf_config": TINY, "method": "full", "micro_batch": 4, "seq_len": 1024, **changes}
    )


def test_sizes_decode_into_their_coefficients():
    value = 11 + 5 * LENGTH + 2 * LENGTH**2 + 7 * BATCH * LENGTH + 3 * BATCH * LENGTH**2
    assert coefficients(value) == [11, 5, 2, 0, 7, 3]
    at = features([2], [10])
    assert highest(np.array([coefficients(value)]), at)[0] == 11 + 50 + 200 + 7 * 20 + 3 * 200


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS.keys())
def test_an_estimate_is_near_the_play(change):
    zero = {"zero_optimization": {"reduce_bucket_size": 2_000_000}}
    extra = {} if change.get("engine") == "plain" else {"deepspeed": zero}
    case = job(**change, **extra)
    forecast = planner.forecast_training(case)
    played = max(forecast.peak_allocated_bytes, forecast.start_peak_bytes)
    assert estimate_bytes(case) == pytest.approx(played, rel=0.12)


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS.keys())
def test_counts_are_those_of_the_whole_network(change):
    case = job(**change)
    parameters = build_network(case).parameters()
    assert counts_of(case).total == sum(p.numel for p in parameters)
    assert counts_of(case).trained == sum(p.numel for p in parameters if p.trainable)


def test_a_table_has_a_row_for_each_consistent_point():
    axes = {
        "zero_stage": [0, 2],
        "offload_optimizer": ["none", "cpu"],
        "micro_batch": [1, 2, 4],
        "grad_accum": [1, 2],
    }
    points = table(job(world_size=2), axes)
    assert len(points) == 3 * 6  # stage 0 cannot offload
    row = points[
        (points.zero_stage == 2)
        & (points.offload_optimizer == "none")
        & (points.micro_batch == 2)
        & (points.grad_accum == 2)
    ]
    alone = replace(job(world_size=2), zero_stage=2, micro_batch=2, grad_accum=2)
    assert row.peak_bytes.item() == pytest.approx(estimate_bytes(alone))
    assert row.step_s.item() == pytest.approx(float(step_time(alone, 2, 1024, 2).seconds))


def test_more_of_anything_needs_more_memory_and_time():
    block = next(blocks(job(), {"micro_batch": [1, 2, 8], "seq_len": [256, 1024], "grad_accum": [1, 4]}))
    assert (np.diff(block.peak_bytes, axis=0) >= 0).all() and (np.diff(block.peak_bytes, axis=1) >= 0).all()
    for axis in range(3):
        assert (np.diff(block.step_s, axis=axis) >= 0).all()


def test_recomputing_is_slower_and_offload_slower_still():
    def speed(**change):
        case = parse_training_case(
            {
                "hf_config": planner.model_config("llama2_7b"),
                "method": "full",
                "world_size": 8,
                "micro_batch": 4,
                "seq_len": 2048,
                "zero_stage": 2,
                **change,
            }
        )
        return float(step_time(case, 4, 2048, 1).tokens_per_s)

    assert (
        speed()
        > speed(gradient_checkpointing=True)
        > speed(gradient_checkpointing=True, offload_optimizer="cpu")
    )
    assert speed() > speed(zero_stage=3)


def test_sizes_keep_the_global_batch():
    case = job(world_size=4)
    assert sizes_of(case, {"micro_batch": (4, 2, 1)}, 32) == [(4, 2), (2, 4), (1, 8)]
    assert sizes_of(case, {"micro_batch": (4, 2)}, None) == [(4, 1), (2, 1)]


def test_the_estimate_tier_is_the_grid_at_one_point():
    given = {**FULL, "micro_batch": 2, "seq_len": 1024, "grad_accum": 4}
    answer = planner.predict(given, tier="estimate")
    assert answer.peak_bytes == pytest.approx(estimate_bytes(planner.parse_training_case(given)), abs=1)
    assert answer.peak_bytes == pytest.approx(planner.predict(given).peak_allocated_bytes, rel=0.2)
    assert answer.to_dict()["tier"] == "estimate" and answer.step_s > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "fsdp2", "optimizer": "torch_adamw", "zero_stage": 0}, "no closed form of engine fsdp2"),
        ({"kind": "serve"}, "takes training cases"),
    ],
)
def test_the_estimate_tier_refuses_what_it_has_no_form_for(changes, said):
    with pytest.raises(planner.CaseError, match=said):
        planner.predict({**FULL, **changes}, tier="estimate")
