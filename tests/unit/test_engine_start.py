"""What engines hold after loading and after their start, summed by hand for a tiny model (N elements, bf16)."""

import pytest
from tiny_cases import ADAPTERS, LORA, NORM, TABLE, TOTAL, Start, case_of, play

import planner
from planner.deepspeed.bf16 import Bf16Stage1
from planner.deepspeed.stage12 import Stage12
from planner.training import make_engine
from planner.units import GIB

N = TOTAL
BUCKET = 1000  # elements
SMALL = {"reduce_bucket_size": BUCKET, "stage3_param_persistence_threshold": 0}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}


def test_stage_0_with_a_fused_optimizer():
    """Flat weights, fp32 copy, two moments; the dummy step adds zero gradients in fp32."""
    done = Start(case_of())
    assert (done.load.end_bytes, done.load.peak_bytes) == (2 * N, 2 * N)
    assert done.start.end_bytes == (2 + 4 + 8) * N
    assert done.start.peak_bytes == (2 + 4 + 8 + 4) * N


def test_stage_0_unfused():
    """Nothing is flattened; the dummy step has zero gradients in both types and a temporary of its own."""
    done = Start(case_of(optimizer="torch_adamw"))
    assert done.start.end_bytes == (2 + 4 + 8) * N
    assert done.start.peak_bytes == (2 + 4 + 8 + 2 + 4 + 4) * N


def test_stage_0_in_fp32_starts_with_nothing():
    done = Start(case_of(dtype="fp32"))
    assert done.start.end_bytes == done.start.peak_bytes == 4 * N


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("world", [2, 4])
def test_stages_1_and_2(stage, world):
    """A flat copy of all weights beside them, then this rank's fp32 part, then one gradient of zeros."""
    done = Start(case_of(zero_stage=stage, world_size=world))
    part = N // world
    assert done.start.end_bytes == 2 * N + 4 * part
    assert done.start.peak_bytes == max(4 * N, 2 * N + 8 * part)


def test_an_offloaded_optimizer_leaves_one_buffer_of_the_largest_weight():
    done = Start(case_of(zero_stage=2, world_size=2, offload_optimizer="cpu"))
    assert done.start.end_bytes == 2 * N + 2 * TABLE


def test_stage_3_loads_one_weight_after_the_other():
    """At the last one, the output layer, all other shards are there, and it is whole for a moment."""
    done = Start(case_of(zero_stage=3, world_size=2, zero=SMALL))
    assert done.load.end_bytes == N
    assert done.load.peak_bytes == N + 2 * TABLE


def test_stage_3_starts():
    """Flat shards, their fp32 copy, the bucket, gradient shards; a conversion and its clone are the peak."""
    done = Start(case_of(zero_stage=3, world_size=2, zero=SMALL))
    shards = N // 2
    assert done.start.end_bytes == (2 + 4 + 2) * shards + 2 * BUCKET
    assert done.start.peak_bytes == (2 + 4 + 4) * shards


def test_defragmenting_empties_the_cache_and_moves_all_shards():
    done = Start(case_of(zero_stage=3, world_size=2, zero=SMALL))
    at_start = done.asked_at_start
    assert at_start[0] == ("weights", N)
    assert not done.engine.shards
    assert (0, 0, 0) in done.arena.events


def test_the_name_keeps_the_conversion_before():
    """While the second sub-group is converted, the first one's conversion still lives beside its clone."""
    done = Start(case_of(zero_stage=3, world_size=2, zero={**SMALL, "sub_group_size": TABLE // 2}))
    first, second, *_ = done.engine.sub_groups
    assert first == TABLE // 2  # the embedding's shard fills it
    conversions = range(
        done.before + 1, done.before + 5
    )  # behind the flat shards: twice, each with its clone
    assert [done.arena.requests[i][0] for i in conversions] == ["fp32 master weights"] * 4
    levels = [done.arena.levels[i] - N for i in conversions]
    assert levels == [4 * first, 8 * first, 8 * first + 4 * second, 4 * first + 8 * second]


def test_hooks_gather_each_trained_weight_once():
    done = Start(case_of(zero_stage=3, world_size=2, zero=SMALL))
    trained = [2 * p.numel for p in done.network.parameters()]
    assert done.asked_at_start[-len(trained) :] == [("weights", nbytes) for nbytes in trained]


def test_hooks_of_offloaded_weights_upload_the_shard_first():
    done = Start(
        case_of(zero_stage=3, world_size=2, offload_param="cpu", offload_optimizer="cpu", zero=SMALL)
    )
    assert done.load.end_bytes == 0
    assert done.start.end_bytes == 2 * BUCKET
    assert done.asked_at_start[-2:] == [("weights", TABLE), ("weights", 2 * TABLE)]


def test_adapters_alone_are_flattened():
    done = Start(case_of(**LORA, zero_stage=2, world_size=2))
    assert done.load.end_bytes == 2 * (N + ADAPTERS)
    assert done.start.end_bytes == 2 * (N + ADAPTERS) + 4 * ADAPTERS // 2


def test_a_plain_loop_starts_with_nothing_on_one_gpu_and_buckets_on_two():
    one = Start(case_of(engine="plain", optimizer="torch_adamw"))
    two = Start(case_of(engine="plain", optimizer="torch_adamw", world_size=2))
    assert (one.start.end_bytes, two.start.end_bytes) == (2 * N, 4 * N)


def test_fp32_sums_at_stage_1_are_one_flat_buffer_of_everything():
    case = case_of(zero_stage=1, world_size=2, deepspeed=FP32_SUMS)
    done = Start(case)
    assert isinstance(done.engine, Bf16Stage1)
    assert done.start.end_bytes == 2 * N + 4 * N // 2 + 4 * N
    assert isinstance(make_engine(case_of(zero_stage=1), done.network, done.arena), Stage12)


@pytest.mark.parametrize("itemsize", [2, 4], ids=["bf16 sums", "fp32 sums"])
def test_accumulated_gradients_at_stage_3(itemsize):
    sums = FP32_SUMS if itemsize == 4 else {}
    done = Start(case_of(zero_stage=3, world_size=2, deepspeed=sums, zero=SMALL))
    assert done.arena.asked("gradients") == [itemsize * N // 2]


def test_fp32_sums_at_stage_2_are_one_flat_part():
    case = case_of(zero_stage=2, world_size=2, grad_accum=2, deepspeed=FP32_SUMS, zero=SMALL)
    run = play(case)
    flat = [nbytes for nbytes in run.arena.asked("gradients") if nbytes == 4 * N // 2]
    assert len(flat) == 1  # made at the first reduction, kept for both micro-batches


def test_a_part_of_the_sub_groups_stays_on_the_gpu():
    """`ratio` 0.5: half of the sub-groups keep weights and gradients in fp32 here."""
    settings = {**SMALL, "sub_group_size": 1, "offload_optimizer": {"ratio": 0.5}}
    whole = case_of(zero_stage=3, world_size=2, offload_optimizer="cpu", zero={**SMALL, "sub_group_size": 1})
    half = case_of(zero_stage=3, world_size=2, offload_optimizer="cpu", zero=settings)
    started = Start(half)
    kept = started.engine.sub_groups[: len(started.engine.sub_groups) // 2]
    assert started.start.end_bytes - Start(whole).start.end_bytes == 8 * sum(kept)
    assert NORM // 2 in kept


def test_an_offloaded_optimizer_has_a_bucket_in_any_case():
    """`stage_1_and_2.py`: contiguous_gradients is on where the optimizer is offloaded, whatever is asked for."""
    settings = {**SMALL, "contiguous_gradients": False}
    here = play(case_of(zero_stage=2, world_size=2, zero=settings))
    away = play(case_of(zero_stage=2, world_size=2, offload_optimizer="cpu", zero=settings))
    assert here.engine.buckets == away.engine.buckets == []  # let go when backward is over
    assert 2 * BUCKET not in here.arena.asked("communication buckets")
    assert 2 * BUCKET in away.arena.asked("communication buckets")


@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_a_gradient_larger_than_the_bucket_is_cloned_where_it_is_offloaded(offload):
    run = play(case_of(zero_stage=2, world_size=2, offload_optimizer=offload, zero=SMALL))
    once = 2  # embedding and output layer
    assert run.arena.asked("gradients").count(2 * TABLE) == once * (2 if offload == "cpu" else 1)


def norms_of_a_step(**changes):
    """Elements of which a step takes the fp64 norm, one gradient at a time."""
    run = play(case_of(zero=SMALL, **changes))
    asked = run.arena.asked("step temporaries")
    return [nbytes // 8 for nbytes in asked], run


def test_stage_3_takes_the_norm_of_each_gradient_shard_first():
    taken, run = norms_of_a_step(zero_stage=3, world_size=2)
    shards = [p.numel // 2 for p in run.network.parameters()]
    assert taken[1 : 1 + len(shards)] == shards  # behind the zero gradients of the start


def test_a_weight_cut_by_the_border_counts_with_its_part_in_the_norm():
    taken, run = norms_of_a_step(zero_stage=1, world_size=4)
    owned = list(run.engine.mine)
    norms = taken[1 : 1 + len(owned)]
    assert norms[:-1] == [p.numel for p in owned[:-1]]
    assert norms[-1] < owned[-1].numel
    assert sum(norms) == N // 4


def test_gradients_on_the_way_to_nvme_wait_for_one_another_in_fp32():
    """An H200 held 5.691 GiB at its peak (2026-11-30): 8 layers of Llama-3.2-1B, 2 x 512 tokens, stage 3."""
    shape = {**planner.model_config("llama3_2_1b"), "num_hidden_layers": 8}
    job = {
        "hf_config": shape,
        "method": "full",
        "zero_stage": 3,
        "micro_batch": 2,
        "seq_len": 512,
        "grad_accum": 2,
    }
    job |= {"gpu": "h200", "offload_optimizer": "nvme", "padded": False}
    nvme = planner.predict(job).peak_allocated_bytes
    assert nvme == pytest.approx(5.691 * GIB, rel=0.02)
    assert nvme > planner.predict({**job, "offload_optimizer": "cpu"}).peak_allocated_bytes + 0.8 * GIB
