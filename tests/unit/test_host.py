"""Main memory and disk: formulas against DeepSpeed's buffers, and against what processes really took."""

from __future__ import annotations

import pytest

import planner
from benchmarks.host_memory import host_table
from planner import disk, host
from planner.network.build import build_network
from planner.units import GIB

LLAMA = planner.model_config("llama3_2_1b")
BASE = {"hf_config": LLAMA, "method": "full", "world_size": 2, "zero_stage": 2, "offload_optimizer": "cpu"}
LORA = {"method": "lora", "lora": {"r": 8, "target_modules": ["q_proj"]}}


def case(**changes):
    return planner.parse_training_case({**BASE, **changes})


def uses(ranks=1, **changes):
    one = case(**changes)
    return host.host_bytes(one, build_network(one), ranks_per_node=ranks)


def files(**changes):
    one = case(**changes)
    return disk.disk_bytes(one, build_network(one))


WEIGHTS = sum(p.numel for p in build_network(case()).parameters())
LARGEST = max(p.numel for p in build_network(case()).parameters())


def ratio(value):
    return {"zero_optimization": {"sub_group_size": 1e8, "offload_optimizer": {"ratio": value}}}


def test_what_stages_1_and_2_pin():
    """fp32 weights and gradients and a 16-bit copy of a rank's part, and one buffer for the largest gradient."""
    part = WEIGHTS // 2
    for stage in (1, 2):
        found = uses(zero_stage=stage)
        assert found[host.PINNED] == pytest.approx(10 * part + 2 * LARGEST, rel=1e-6)
        assert found[host.STATES] == 8 * part


def test_gradients_rest_in_main_memory_between_micro_batches():
    kept = uses(grad_accum=2)["accumulated gradients (pinned)"]
    assert kept == pytest.approx(WEIGHTS, rel=0.05)  # two bytes a weight, half of the weights
    assert "accumulated gradients (pinned)" not in uses()


def test_what_stage_3_pins_and_what_it_leaves_pageable():
    part = WEIGHTS / 2
    found = uses(zero_stage=3)
    assert found[host.PINNED] == pytest.approx(6 * part, rel=1e-4)
    assert found[host.PAGEABLE] == pytest.approx(4 * part, rel=1e-4)
    assert found[host.STATES] == pytest.approx(8 * part, rel=1e-4)


def test_half_the_sub_groups_offloaded_leave_half_the_state_but_all_gradients():
    whole = uses(zero_stage=3, deepspeed=ratio(1.0))
    half = uses(zero_stage=3, deepspeed=ratio(0.5))
    none = uses(zero_stage=3, deepspeed=ratio(0))
    assert half[host.STATES] == pytest.approx(whole[host.STATES] / 2, rel=0.35)
    assert half[host.PINNED] == whole[host.PINNED]
    assert host.STATES not in none


@pytest.mark.parametrize(("name", "state"), [("lion", 4), ("deepspeed_adamw", 8), ("torch_adamw", 8)])
def test_state_is_the_optimizers_own(name, state):
    found = uses(optimizer=name)
    assert found[host.STATES] == state * (WEIGHTS // 2)
    assert (host.STEPPING in found) == (name == "torch_adamw")


def test_nvme_stages_four_buffers_and_writes_the_rest():
    found = uses(zero_stage=3, offload_optimizer="nvme")
    part = WEIGHTS / 2
    assert found["optimizer staging (pinned)"] == pytest.approx(16 * part, rel=1e-4)
    assert host.STATES not in found
    written = files(zero_stage=3, offload_optimizer="nvme")["offloaded optimizer"]
    assert written == pytest.approx(16 * WEIGHTS, rel=1e-4)


def test_weights_on_nvme_stay_in_main_memory_up_to_its_share():
    both = {"zero_stage": 3, "offload_optimizer": "nvme", "offload_param": "nvme"}
    found = uses(**both)
    # half of the embedding, which is more than DeepSpeed's default buffer
    assert found["weight staging (pinned)"] == 5 * 128_256 * 2048 // 2 * 2
    assert found[host.WEIGHTS] == pytest.approx(WEIGHTS, rel=1e-4)  # below max_in_cpu
    assert files(**both)["offloaded weights"] == pytest.approx(2 * WEIGHTS, rel=0.01)


def test_frozen_weights_are_pinned_one_by_one_and_trained_ones_twice():
    offloaded = {"zero_stage": 3, "offload_param": "cpu"}
    full, lora = uses(**offloaded), uses(**offloaded, **LORA)
    assert full[host.CACHED_WEIGHTS] == pytest.approx(full[host.WEIGHTS], rel=0.01)
    assert lora[host.WEIGHTS] == pytest.approx(full[host.WEIGHTS], rel=0.01)
    assert lora.get(host.CACHED_WEIGHTS, 0) < 0.01 * GIB


def test_pinned_blocks_are_powers_of_two():
    assert [host.pinned_block_bytes(size) for size in (0, 1, 3, 4, 5)] == [0, 1, 4, 4, 8]
    found = uses()
    assert 0 < found[host.ROUNDING] < found[host.PINNED]


def test_a_node_holds_what_its_ranks_hold_but_saves_once():
    one, four = uses(ranks=1), uses(ranks=4)
    for use in (host.PROCESSES, host.PINNED, host.STATES, host.LOADING):
        assert four[use] == 4 * one[use]
    assert four[host.SAVING] == one[host.SAVING] == 2 * WEIGHTS


def test_passing_uses_do_not_add_up():
    found = uses()
    kept = sum(size for use, size in found.items() if use not in host.PASSING)
    assert host.host_peak_bytes(found) == kept + found[host.SAVING]
    assert host.host_peak_bytes({host.PROCESSES: 1, host.LOADING: 9, host.STATES: 3}) == 10


def test_resident_memory_of_measured_processes():
    """Where ranks were real, and wherever tensors rest in main memory; fake ranks have no NCCL, 0.4 GiB less."""
    table = host_table()
    tensors = (table["method"] == "qlora") | (table["forecast"] > 2.2)
    assert tensors.sum() >= 9
    assert (table[tensors]["error %"].abs() < 1.5).all()
    real = table[table["NCCL"]]
    assert len(real) > 10
    assert (real["error %"].abs() < 12).all()


def test_checkpoint_bytes_by_stage_and_method():
    sizes = {stage: files(zero_stage=stage) for stage in (1, 2, 3)}
    assert all(one[disk.OPTIMIZER] == 12 * WEIGHTS for one in sizes.values())
    assert sizes[1][disk.WEIGHTS] == sizes[2][disk.WEIGHTS] == 2 * WEIGHTS
    assert disk.WEIGHTS not in sizes[3]
    frozen = files(**LORA)
    assert frozen[disk.WEIGHTS] == pytest.approx(4 * WEIGHTS, rel=0.01)  # frozen weights twice
    assert files(**LORA, zero_stage=3)[disk.WEIGHTS] == pytest.approx(2 * WEIGHTS, rel=0.01)
    assert frozen["merged model"] == 2 * WEIGHTS
    assert frozen["result"] < 0.01 * GIB


def test_a_plain_loop_keeps_state_in_the_weights_type():
    plain = {"engine": "plain", "zero_stage": 0, "world_size": 1, "offload_optimizer": "none"}
    assert files(**plain, optimizer="torch_adamw")[disk.OPTIMIZER] == 4 * WEIGHTS
    assert files(**plain, optimizer="adamw_8bit")[disk.OPTIMIZER] == pytest.approx(2 * WEIGHTS, rel=0.04)
