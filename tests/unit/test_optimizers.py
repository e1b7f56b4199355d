"""Every row of the table of optimizers: state, steps, offloading, paging."""

import pytest
from tiny_cases import NORM, TABLE, TOTAL, Recorder, case_of, play

import planner
from planner.optimizers import PAGED_FROM, Stepper, optimizer, optimizers

SIDE = 1024
M = SIDE * SIDE  # elements of one square weight
BLOCKS = 4 * M // 256  # fp32 scales of 8-bit state

# name -> bytes of state of one fp32 square, and bytes of a step's temporaries for it
ROWS = {
    "deepspeed_adamw": (8 * M, 0),
    "torch_adamw": (8 * M, 4 * M),
    "torch_adamw_fused": (8 * M, 0),
    "adamw_8bit": (2 * M + 2 * BLOCKS, 0),
    "paged_adamw_8bit": (2 * BLOCKS, 0),
    "paged_adamw": (0, 0),
    "lion": (4 * M, 0),
    "sgd": (0, 0),
    "sgd_momentum": (4 * M, 0),
    "adafactor": (2 * 4 * SIDE, 2 * 4 * M),
}
OFFLOADED = {"deepspeed_adamw", "torch_adamw", "torch_adamw_fused", "lion", "sgd", "sgd_momentum"}


def test_every_row_is_checked_here():
    assert set(ROWS) == set(optimizers())


@pytest.mark.parametrize(("name", "expected"), ROWS.items(), ids=ROWS.keys())
def test_state_and_temporaries(name, expected):
    arena = Recorder()
    stepper = Stepper(arena, name)
    stepper.step([(SIDE, SIDE)])
    state = sum(arena.asked("optimizer states"))
    assert (state, sum(arena.asked("step temporaries"))) == expected
    assert arena.allocator.allocated == state
    stepper.step([(SIDE, SIDE)])
    assert sum(arena.asked("optimizer states")) == state  # made once


@pytest.mark.parametrize(("name", "paged"), [("paged_adamw_8bit", 2 * M), ("paged_adamw", 8 * M)])
def test_paged_state_lies_outside_the_allocator(name, paged):
    arena = Recorder()
    stepper = Stepper(arena, name)
    stepper.step([(SIDE, SIDE)])
    assert stepper.paged_bytes == paged
    stepper.step([(PAGED_FROM - 1,)], first=1)
    assert stepper.paged_bytes == paged  # small state is ordinary
    assert arena.allocator.allocated > 0


def test_small_weights_of_an_8_bit_optimizer_have_fp32_state():
    assert optimizer("adamw_8bit").state_parts((4095,), 4) == [4 * 4095] * 2
    assert optimizer("adamw_8bit").state_parts((4096,), 4) == [4096, 4096, 64, 64]


def test_state_follows_the_type_of_the_weight_where_torch_makes_it():
    assert optimizer("torch_adamw").state_parts((10,), 2) == [20, 20]
    assert optimizer("paged_adamw").state_parts((10,), 2) == [40, 40]


def test_adafactor_keeps_rows_and_columns_of_a_matrix_and_all_of_a_vector():
    assert optimizer("adafactor").state_parts((30, 20), 4) == [4 * 30, 4 * 20]
    assert optimizer("adafactor").state_parts((600,), 4) == [4 * 600]


def test_narrow_weights_are_widened_one_at_a_time():
    """A plain loop steps bf16 weights: Adafactor makes fp32 copies of weight and gradient too."""
    arena = Recorder()
    Stepper(arena, "adafactor").step([(30, 20), (30, 20)], 2)
    assert arena.asked("step temporaries") == [4 * 600] * 8
    assert arena.peak_bytes == 4 * 4 * 600 + 2 * 4 * 50


def test_foreach_temporaries_live_together():
    arena = Recorder()
    stepper = Stepper(arena, "torch_adamw")
    stepper.step([(10,), (20,)])
    assert len(stepper.states) == 2
    assert arena.peak_bytes - arena.allocator.allocated == 4 * 30


@pytest.mark.parametrize("name", ROWS)
def test_which_can_be_offloaded(name):
    change = {"optimizer": name, "zero_stage": 2, "offload_optimizer": "cpu"}
    if name in OFFLOADED:
        assert case_of(**change).optimizer == name
        return
    with pytest.raises(planner.CaseError, match=f"optimizer {name} has no CPU version to offload to; use"):
        case_of(**change)


@pytest.mark.parametrize("name", ROWS)
def test_which_a_plain_loop_can_use(name):
    change = {"optimizer": name, "engine": "plain"}
    if optimizer(name).plain:
        assert case_of(**change).engine == "plain"
        return
    with pytest.raises(planner.CaseError, match=f"optimizer {name} is DeepSpeed's; engine plain takes"):
        case_of(**change)


@pytest.mark.parametrize("name", ["adamw_8bit", "lion", "adafactor"])
def test_a_sharded_optimizer_steps_one_flat_part(name):
    """At stage 2 the stepped tensor has one dimension: Adafactor factors nothing."""
    run = play(case_of(zero_stage=2, world_size=2, optimizer=name), steps=2)
    half = TOTAL // 2
    expected = optimizer(name).state_parts((half,), 4)
    assert run.arena.asked("optimizer states") == expected


def test_a_plain_loop_steps_each_weight_in_its_own_type():
    run = play(case_of(engine="plain", optimizer="torch_adamw"), steps=2)
    states = run.arena.asked("optimizer states")
    assert sum(states) == 2 * 2 * TOTAL
    assert {2 * TABLE, 2 * NORM} <= set(states)
