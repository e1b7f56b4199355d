"""The search answers only with settings that were played and fit, fastest first."""

import pytest

import planner
from planner.choose import choose
from planner.parsing import parse_training_case
from planner.search import Room, options, search
from planner.units import GIB

CASE = {"hf_config": planner.model_config("qwen2_5_0_5b"), "method": "full", "world_size": 2, "seq_len": 1024}
FREE = {
    "zero_stage": (0, 1, 2, 3),
    "offload_optimizer": ("none", "cpu"),
    "gradient_checkpointing": (False, True),
    "micro_batch": (8, 4, 2, 1),
}


def job(**changes):
    zero = {"zero_optimization": {"reduce_bucket_size": 50_000_000}}
    return parse_training_case({**CASE, "deepspeed": zero, "zero_stage": 2, **changes})


@pytest.mark.parametrize("gpu_gib", [8, 12, 24])
def test_what_is_chosen_fits_by_its_own_forecast(gpu_gib):
    chosen = choose(job(), FREE, room=Room(gpu_gib * GIB), global_batch=16)
    assert chosen.fits
    assert planner.forecast_training(chosen.case).survives(gpu_gib * GIB)
    assert chosen.case.micro_batch * chosen.case.grad_accum * 2 == 16


def test_more_room_is_never_slower():
    rooms = (7, 9, 12, 24, 48)
    chosen = [choose(job(), FREE, room=Room(gib * GIB), global_batch=16) for gib in rooms]
    steps = [next(a.step_s for a in one.found.answers if a.case == one.case) for one in chosen]
    assert steps == sorted(steps, reverse=True)


def test_nothing_fits_says_so_with_the_smallest():
    chosen = choose(job(), FREE, room=Room(GIB), global_batch=16)
    assert not chosen.fits
    assert chosen.case == chosen.found.smallest.case
    assert chosen.case.micro_batch == 1 and chosen.case.gradient_checkpointing


@pytest.mark.parametrize(("share", "recomputes"), [(1.15, False), (1.03, True)])
def test_on_a_cpu_a_few_settings_are_tried_as_listed(share, recomputes):
    case = job(gpu="cpu", dtype="fp32", zero_stage=2)
    kept = planner.forecast_training(case).required_bytes
    free = {"gradient_checkpointing": (False, True)}
    chosen = choose(case, free, room=Room(int(share * kept)))
    assert chosen.fits and chosen.case.gradient_checkpointing is recomputes


def test_on_a_cpu_where_nothing_fits_the_smallest_is_named():
    free = {"gradient_checkpointing": (False, True)}
    chosen = choose(job(gpu="cpu", dtype="fp32", zero_stage=2), free, room=Room(GIB))
    assert not chosen.fits and chosen.case.gradient_checkpointing


def test_main_memory_can_be_what_is_missing():
    axes = {"zero_stage": (3,), "offload_optimizer": ("cpu",)}
    candidates = options([job()], axes, [(1, 1)])
    assert search(candidates, Room(24 * GIB)).answers
    found = search(candidates, Room(24 * GIB, host_bytes=GIB))
    assert not found.answers and found.misses[0].where == "host"


def test_several_answers_are_of_different_kinds():
    free = {name: values for name, values in FREE.items() if name != "micro_batch"}
    found = search(options([job()], free, [(4, 1), (1, 4)]), Room(40 * GIB), wanted=3)
    kinds = {
        (a.case.zero_stage == 3, a.case.offload_optimizer, a.case.gradient_checkpointing)
        for a in found.answers
    }
    assert len(kinds) == len(found.answers) >= 2
    speeds = [answer.tokens_per_s for answer in found.answers]
    assert speeds == sorted(speeds, reverse=True)
