"""Arithmetic of a training step: the published rule for full training, and what frozen weights save."""

from __future__ import annotations

import pytest

import planner
from planner.work import Work, work_of

LENGTH = 2048


def work(method: str, **more: object) -> Work:
    case = {
        **{"hf_config": planner.model_config("llama2_7b"), "method": method, "gpu": "h200", "dtype": "bf16"},
        **{"world_size": 1, "zero_stage": 0, "micro_batch": 1, "seq_len": LENGTH, **more},
    }
    return work_of(planner.parse_training_case(case))


def test_full_training_is_six_flops_a_weight_and_token() -> None:
    # all but the input embedding, which is looked up: 32000 x 4096 of 6.738e9
    weights = 6_738_415_616 - 32_000 * 4096
    assert work("full").flops_per_token == pytest.approx(6 * weights, rel=1e-4)


def test_attention_is_half_of_what_palm_counts_because_of_the_mask() -> None:
    # PaLM, appendix B: 12 x layers x heads x head size x length a token
    assert work("full").flops_per_pair == pytest.approx(12 * 32 * 4096 / 2)


def test_lora_counts_four_flops_for_frozen_weights() -> None:
    lora = {"lora": {"r": 8, "target_modules": "all-linear"}}
    ratio = work("lora", **lora).flops_per_token / work("full").flops_per_token
    assert 4 / 6 < ratio < 4 / 6 * 1.02


def test_recomputing_is_no_useful_work() -> None:
    assert work("full", gradient_checkpointing=True) == work("full")


def test_the_peak_is_that_of_the_type_and_unknown_without_matrix_units() -> None:
    assert work("full").peak_flops_per_s == pytest.approx(989e12)
    assert work("full", dtype="fp32").peak_flops_per_s is None
    assert work("full", gpu="cpu").peak_flops_per_s is None
