"""Relations that must hold whatever the numbers: sharding, offload, adapters, checkpointing."""

from dataclasses import replace
from pathlib import Path

import pytest

import planner
from planner.network.build import build_network
from planner.units import GIB
from planner.verdict import changes, judge


def case(**changes):
    base = {
        "hf_config": planner.model_config("qwen2_5_0_5b"),
        "method": "full",
        "world_size": 4,
        "zero_stage": 2,
        "micro_batch": 2,
        "seq_len": 512,
        "dtype": "bf16",
        "gradient_checkpointing": True,
    }
    return planner.parse_training_case({**base, **changes})


LORA = {"method": "lora", "lora": {"r": 8, "target_modules": "all-linear"}}


def peak(one):
    return planner.forecast_training(one).peak_allocated_bytes


def test_components_sum_to_the_peak():
    forecast = planner.forecast_training(case())
    assert sum(forecast.components.values()) == forecast.peak_allocated_bytes


def test_required_lies_between_allocated_and_reserved():
    forecast = planner.forecast_training(case())
    assert forecast.peak_allocated_bytes <= forecast.required_bytes <= forecast.peak_reserved_bytes
    assert forecast.survives(forecast.required_bytes)
    assert not forecast.survives(forecast.peak_allocated_bytes - 1)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_higher_stage_holds_no_more_between_steps(method):
    extra = LORA if method == "lora" else {}
    ends = []
    for stage in (0, 1, 3):
        zero = {"zero_optimization": {"reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 0}}
        run = planner.training.TrainingRun(case(**extra, zero_stage=stage, deepspeed=zero))
        ends.append(run.play().phases[-1].end_bytes)
    assert ends == sorted(ends, reverse=True)


def test_more_gpus_never_need_more_per_gpu_at_stage_2():
    peaks = [peak(case(world_size=n)) for n in (2, 4, 8)]
    assert peaks == sorted(peaks, reverse=True)


def test_lora_needs_less_than_full():
    assert peak(case(**LORA)) < peak(case())


def test_checkpointing_saves_activations():
    long = {"micro_batch": 8, "seq_len": 1024}
    assert peak(case(**long)) < peak(case(**long, gradient_checkpointing=False))


def test_offload_moves_optimizer_state_to_the_host():
    on_gpu = planner.forecast_training(case())
    on_host = planner.forecast_training(case(offload_optimizer="cpu"))
    assert "optimizer states" not in on_host.components
    offloaded = sum(nbytes for use, nbytes in on_host.host.items() if "optimizer" in use)
    assert offloaded > 16 * sum(p.numel for p in build_network(case()).parameters())
    assert on_host.peak_allocated_bytes < on_gpu.peak_allocated_bytes


def test_accumulated_gradients_are_kept_between_micro_batches():
    once, often = (planner.training.TrainingRun(case(grad_accum=n)).play() for n in (1, 4))
    assert often.peak_bytes > once.peak_bytes


def test_golden_8b_full_zero3_on_8_gpus():
    """Measured on an H200: 21.564 GiB."""
    config = planner.model_config("llama3_1_8b")
    one = case(hf_config=config, world_size=8, zero_stage=3, micro_batch=1, seq_len=1024)
    assert peak(one) / GIB == pytest.approx(21.564, rel=0.005)


def test_a_job_that_does_not_fit_is_told_what_would():
    one = case(zero_stage=0, world_size=4, micro_batch=16, seq_len=2048, gradient_checkpointing=False)
    verdict = judge(one, planner.forecast_training(one), budget_bytes=24 * GIB)
    assert (verdict.fits, verdict.label) == (False, "does not fit")
    assert verdict.headroom_bytes < 0
    assert verdict.fix


def test_the_fix_does_fit():
    one = case(hf_config=planner.model_config("llama3_2_1b"), zero_stage=0, micro_batch=1, seq_len=512)
    budget = 20 * GIB
    verdict = judge(one, planner.forecast_training(one), budget_bytes=budget)
    assert verdict.fix is not None
    stage = int(verdict.fix.split("zero.stage=")[1][0])
    assert judge(
        replace(one, zero_stage=stage),
        planner.forecast_training(replace(one, zero_stage=stage)),
        budget_bytes=budget,
    ).fits


def test_headroom_is_what_the_required_memory_leaves():
    one = case()
    forecast = planner.forecast_training(one)
    verdict = judge(one, forecast, budget_bytes=80 * GIB)
    assert verdict.headroom_bytes == 80 * GIB - forecast.required_bytes


@pytest.mark.parametrize(
    ("ranks", "budget_gib", "settings"),
    [
        (2, 5.0, "offload.optimizer=cpu"),
        (8, 3.3, "zero.stage=3 offload.optimizer=cpu"),
        (2, 3.3, "zero.stage=3 offload.optimizer=cpu offload.param=cpu"),
    ],
)
def test_no_more_is_moved_to_main_memory_than_it_takes(ranks, budget_gib, settings):
    start = case(world_size=ranks, micro_batch=1, seq_len=256, expandable_segments=True)
    verdict = judge(start, planner.forecast_training(start), budget_bytes=int(budget_gib * GIB))
    assert verdict.fix is not None and verdict.fix.startswith(f"{settings} (needs ")


def test_a_packed_base_is_offered_stage_3():
    start = case(**LORA | {"method": "qlora", "quantization": {"bits": 4}}, world_size=8, zero_stage=2)
    offered = [text for text, _ in changes(start)]
    assert "zero.stage=3" in offered and not any("offload.param" in text for text in offered)


def test_what_is_moved_already_is_not_named_again():
    offered = [text for text, _ in changes(case(zero_stage=3, offload_optimizer="nvme"))]
    assert "offload.param=cpu" in offered and not any("offload.optimizer" in text for text in offered)


def test_public_names_are_loaded_when_they_are_asked_for():
    listed = [name for names in planner._HOMES.values() for name in names]
    assert sorted(listed) == sorted(planner.__all__) and set(listed) <= set(dir(planner))
    assert all(getattr(planner, name).__name__ == name for name in listed)
    # a module of the same name would hide the function once it is loaded
    assert not {one.stem for one in Path(planner.__file__).parent.iterdir()} & set(listed)
    with pytest.raises(AttributeError, match="no attribute 'forcast_training'"):
        planner.forcast_training  # noqa: B018
