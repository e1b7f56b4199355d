"""The perceptron as the planner sees it: what is in memory at each ZeRO stage, and what is refused."""

from __future__ import annotations

import pytest

import planner
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import Step
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan import resolve
from llmsys_exp.plan.case_mlp import check_mlp_steps
from planner.work import work_of

WIDTHS = (784, 300, 10)
TOTAL = 784 * 300 + 300 + 300 * 10 + 10
RANKS, BATCH, BUCKET = 2, 64, 1_000_000
WIDE = {"bf16": 2, "fp32": 4}


def forecast(stage: int, dtype: str, **more: object) -> planner.Forecast:
    case = {
        "kind": "mlp",
        "layers": list(WIDTHS),
        "method": "full",
        "gpu": "cpu",
        "dtype": dtype,
        "world_size": RANKS,
        "zero_stage": stage,
        "micro_batch": BATCH,
        "deepspeed": {"zero_optimization": {"reduce_bucket_size": BUCKET}},
    }
    found = planner.predict({**case, **more})
    assert isinstance(found, planner.Forecast)
    return found


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_parts_sum_to_the_peak(stage: int, dtype: str) -> None:
    found = forecast(stage, dtype)
    assert sum(found.components.values()) == found.peak_allocated_bytes
    assert found.residuals.name == "derived, not measured"


@pytest.mark.parametrize("dtype", WIDE)
def test_stage_2_holds_16_bit_weights_and_a_share_of_master_weights_and_moments(dtype: str) -> None:
    found, part = forecast(2, dtype).components, -(-TOTAL // (2 * RANKS)) * 2
    assert found["weights"] == WIDE[dtype] * part * RANKS
    assert found["fp32 master weights"] == 4 * part
    assert found["optimizer states"] == 8 * part
    assert found["communication buckets"] == WIDE[dtype] * BUCKET
    # those that touch this rank's half: the first matrix, whole, with its bias
    assert found["gradients"] in (WIDE[dtype] * 784 * 300, WIDE[dtype] * (784 * 300 + 300))


def test_stage_0_holds_everything_and_stage_3_half_of_it() -> None:
    everything, half = forecast(0, "fp32").components, forecast(3, "fp32").components
    assert everything["weights"] == 4 * TOTAL
    assert everything["optimizer states"] == 8 * TOTAL
    assert half["weights"] == 4 * TOTAL // 2
    assert half["optimizer states"] == 8 * TOTAL // 2


def test_activations_grow_with_the_batch_and_nothing_else_does() -> None:
    one, two = forecast(2, "fp32").components, forecast(2, "fp32", micro_batch=2 * BATCH).components
    changed = {name for name in two if two[name] != one[name]}
    assert changed <= {"inputs", "activations", "activation gradients"}
    assert two["inputs"] == 2 * one["inputs"] == 2 * BATCH * (784 + 8)


def test_arithmetic_of_an_image() -> None:
    case = {"kind": "mlp", "layers": list(WIDTHS), "method": "full", "gpu": "h200"}
    assert work_of(planner.parse_training_case(case)).flops_per_token == 6 * (784 * 300 + 300 * 10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": [784]}, "at least two widths"),
        ({"layers": [784, True]}, "at least two widths"),
        ({"layers": "784,10"}, "layers is '784,10'"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing means nothing to kind mlp"),
        ({"method": "lora", "lora": {"r": 4}}, "kind mlp trains every weight"),
        ({"engine": "fsdp2"}, "fsdp2 shards transformer blocks"),
        ({"kind": "train"}, "layers belongs to kind mlp"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else None,
)
def test_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(planner.CaseError, match=said):
        forecast(2, "fp32", **change)


JOB = ["model=mlp_fashion_mnist", "data=fashion_mnist_standin", "method=full"]


def test_a_plan_of_images_has_no_speed_in_tokens() -> None:
    plan = resolve(compose_config([*JOB, "hardware=h200", "training.global_batch=128"]))
    assert (plan.verdict.fits, plan.tokens_per_s) == (True, None)
    assert plan.config.training.gradient_checkpointing is False
    assert plan.config.training.micro_batch == 64


def test_it_fits_nowhere_and_the_remedy_is_none_of_a_language_models() -> None:
    plan = resolve(compose_config([*JOB, "hardware=h200", "hardware.memory_gib=1"]))
    assert not plan.verdict.fits
    assert plan.verdict.fix is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("method=lora", "needs a language model"),
        ("training.liger=true", "training.liger=True means nothing to model.kind=mlp"),
        ("data.packing=true", "data.packing=True means nothing"),
        ("model.layers=[784]", "at least two widths"),
        ("model.layers=[784,-1]", "model.layers"),
        ("model.kind=causal_lm", "Set model.kind=mlp"),
        ("data=house_style", "Test images come with the others"),
        ("model=smollm2_135m_instruct", "makes images, and model.kind is causal_lm"),
    ],
)
def test_settings_of_language_models_are_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve(compose_config([*JOB, change]))


@pytest.mark.parametrize("step", [Step.infer, Step.export, Step.quantize])
def test_steps_of_language_models_are_refused(step: Step) -> None:
    config = compose_config(JOB)
    check_mlp_steps(config, [Step.train])
    with pytest.raises(UserError, match=f"The step {step.name} needs a language model"):
        check_mlp_steps(config, [Step.train, step])
