"""The DeepSpeed configuration of every combination of stage, offload, type and optimizer, key by key."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import Config, Device, Dtype, Optimizer
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.launch.ds_config import MADE_BY_DEEPSPEED, ds_config
from llmsys_exp.plan.case import planner_case
from llmsys_exp.plan.checks import check_settings
from llmsys_exp.plan.resolve import settle
from planner.optimizers import optimizers

ALWAYS = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "zero_optimization",
}
SHARED = {"stage", "overlap_comm", "contiguous_gradients", "reduce_bucket_size"}
STAGE3 = {
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "sub_group_size",
    "stage3_gather_16bit_weights_on_model_save",
}
ZERO_KEYS = {
    0: {"stage"},
    1: {*SHARED, "allgather_bucket_size"},
    2: {*SHARED, "allgather_bucket_size"},
    3: SHARED | STAGE3,
}
OFFLOADS = {  # offload.optimizer, offload.param -> stages that have them
    ("none", "none"): (0, 1, 2, 3),
    ("cpu", "none"): (1, 2, 3),
    ("cpu", "cpu"): (3,),
    ("none", "cpu"): (3,),
    ("nvme", "none"): (3,),
    ("nvme", "nvme"): (3,),
}
OPTIMIZERS = tuple(one.value for one in Optimizer if one is not Optimizer.auto)


def config_of(**settings: Any) -> Config:
    """A resolved configuration; settings are `group__key=value`."""
    plain = to_plain(from_plain({}))
    defaults = {
        "model__id": "x",
        "model__entry": "llama3_2_1b",
        "data__train": "x",
        "data__name": "x",
        "hardware__gpu": "h200",
        "method__kind": "full",
        "training__dtype": "bf16",
        "training__optimizer": "deepspeed_adamw",
        "training__micro_batch": 4,
        "training__grad_accum": 3,
        "training__gradient_checkpointing": False,
        "zero__stage": 2,
        "zero__reduce_bucket_size": 1_000_000,
        "offload__optimizer": "none",
        "offload__param": "none",
        "offload__nvme_path": "/nvme",
    }
    for key, value in (defaults | settings).items():
        node, parts = plain, key.split("__")
        for part in parts[:-1]:
            node = node[part]
        node[parts[-1]] = value
    return from_plain(plain)


def combinations() -> list[tuple[int, str, str, str, str]]:
    return [
        (stage, optimizer_place, param_place, dtype, optimizer)
        for (optimizer_place, param_place), stages in OFFLOADS.items()
        for stage, dtype, optimizer in itertools.product(stages, ("fp32", "fp16", "bf16"), OPTIMIZERS)
        if optimizer_place == "none" or optimizers()[optimizer].offload
    ]


def test_every_combination_has_exactly_the_keys_that_deepspeed_reads() -> None:
    config = config_of()
    for stage, optimizer_place, param_place, dtype, optimizer in combinations():
        config.zero.stage = stage
        config.offload.optimizer, config.offload.param = Device(optimizer_place), Device(param_place)
        config.training.dtype, config.training.optimizer = Dtype(dtype), Optimizer(optimizer)
        found = ds_config(config, world_size=2, device="cuda")
        made = config.training.optimizer in MADE_BY_DEEPSPEED
        untested = stage > 0 and optimizer not in (
            "deepspeed_adamw",
            "torch_adamw",
            "torch_adamw_fused",
            "lion",
        )
        expected = ALWAYS | ({dtype} - {"fp32"}) | ({"optimizer"} if made else set())
        expected |= {"zero_allow_untested_optimizer"} if untested else set()
        expected |= {"aio"} if "nvme" in (optimizer_place, param_place) else set()
        assert set(found) == expected
        places = {"offload_optimizer": optimizer_place, "offload_param": param_place}
        zero = ZERO_KEYS[stage] | {key for key, place in places.items() if place != "none"}
        assert set(found["zero_optimization"]) == zero
        assert "auto" not in json.dumps(found)


GOLDEN = Path(__file__).parent / "data" / "ds_configs.json"
GOLDEN_CASES: dict[str, dict[str, Any]] = {
    "stage0_bf16": {"zero__stage": 0},
    "stage1_fp32_gradients": {"zero__stage": 1, "training__grad_accum_dtype": "fp32"},
    "stage2_fp16_offloaded": {"training__dtype": "fp16", "offload__optimizer": "cpu"},
    "stage2_fp16_fixed_scale": {"training__dtype": "fp16", "training__loss_scale": 128.0},
    "stage3_nvme": {"zero__stage": 3, "offload__optimizer": "nvme", "offload__param": "nvme"},
    "stage3_deepspeed_checkpointing": {
        "zero__stage": 3,
        "training__gradient_checkpointing": True,
        "training__checkpointing": "deepspeed",
        "training__checkpointing_cpu": True,
    },
    "sgd_momentum": {"training__optimizer": "sgd_momentum", "training__momentum": 0.8},
    "lion": {"training__optimizer": "lion", "training__weight_decay": 0.1},
    "torch_fused": {"training__optimizer": "torch_adamw_fused", "training__adam_beta2": 0.95},
    "adafactor": {"training__optimizer": "adafactor"},
}


def test_the_files_are_as_recorded() -> None:
    """`python tests/unit/test_ds_config.py` writes them again; read the difference."""
    assert golden() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def golden() -> dict[str, Any]:
    return {
        name: ds_config(config_of(**settings), world_size=2, device="cuda")
        for name, settings in GOLDEN_CASES.items()
    }


def test_nvme_buffers_hold_the_largest_shard() -> None:
    big = {"zero__stage": 3, "offload__param": "nvme", "offload__optimizer": "nvme"}
    alone = ds_config(config_of(**big), world_size=1, device="cuda")["zero_optimization"]["offload_param"]
    many = ds_config(config_of(**big), world_size=8, device="cuda")["zero_optimization"]["offload_param"]
    assert alone["buffer_size"] == 128_256 * 2048
    assert many["buffer_size"] == 100_000_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero__stage": 0, "offload__optimizer": "cpu"}, "offload.optimizer needs zero.stage 1, 2 or 3"),
        ({"zero__stage": 2, "offload__param": "cpu"}, "offload.param needs zero.stage 3"),
        ({"zero__stage": 2, "offload__optimizer": "nvme"}, "offload.optimizer nvme needs zero.stage 3"),
        (
            {"zero__stage": 3, "offload__param": "nvme", "method__kind": "lora"},
            "offload.param nvme fails with frozen weights",
        ),
        (
            {"zero__stage": 2, "offload__optimizer": "cpu", "training__optimizer": "adamw_8bit"},
            "adamw_8bit has no CPU version",
        ),
        ({"hardware__gpu": "cpu", "training__dtype": "fp16"}, "training.dtype=fp16 does not run on"),
        ({"hardware__gpu": "cpu", "training__optimizer": "lion"}, "training.optimizer=lion needs a GPU"),
        (
            {"zero__stage": 3, "offload__optimizer": "nvme", "offload__nvme_path": None},
            "Give offload.nvme_path=FOLDER",
        ),
        (
            {"zero__stage": 3, "method__kind": "lora", "method__lora__use_dora": True},
            "method.lora.use_dora at zero.stage 3 is not supported",
        ),
        (
            {"method__kind": "qlora", "zero__stage": 3, "offload__param": "cpu", "offload__optimizer": "cpu"},
            "qlora with offload.param is not modelled",
        ),
        ({"method__kind": "lora", "method__lora__adapter_dtype": "fp16"}, "is neither fp32 nor"),
        (
            {"method__kind": "lora", "method__lora__train_base": True, "method__lora__use_dora": True},
            "goes with plain adapters",
        ),
        ({"method__kind": "qlora", "method__quantization__kind": "gptq"}, "is not quantised with GPTQ"),
        ({"method__kind": "lora", "method__lora__adapter": "/no/such"}, "adapter_config.json cannot be read"),
        (
            {"training__checkpointing_cpu": True, "training__gradient_checkpointing": True},
            "checkpointing_cpu",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_deepspeed_would_take_for_something_else_is_refused(settings: Any, message: str) -> None:
    config = config_of(**settings)
    with pytest.raises((ConfigError, UserError)) as raised:
        check_settings(config)
        settle(config)
    assert message in str(raised.value)


def test_a_gptq_folder_says_how_it_is_quantised(tmp_path: Path) -> None:
    import planner

    stored = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    shape = planner.model_config("llama3_2_1b") | {"quantization_config": stored}
    (tmp_path / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    folder = {"model__entry": None, "model__path": str(tmp_path)}
    gptq = config_of(method__kind="qlora", method__quantization__kind="gptq", **folder)
    quantization = planner_case(gptq, dtype="bf16").quantization
    assert quantization is not None and (quantization.kind, quantization.group_size) == ("gptq", 64)
    with pytest.raises(UserError, match="weights are quantised"):
        planner_case(config_of(method__kind="lora", **folder), dtype="bf16")


def test_an_adapter_to_go_on_with_says_its_own_rank_and_targets(tmp_path: Path) -> None:
    stored = {"peft_type": "LORA", "r": 32, "lora_alpha": 8, "target_modules": ["v_proj", "q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(stored), encoding="utf-8")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    lora = planner_case(
        config_of(method__kind="lora", method__lora__adapter=str(tmp_path)), dtype="bf16"
    ).lora
    assert lora is not None and (lora.r, lora.target_modules) == (32, ("q_proj", "v_proj"))


@pytest.mark.parametrize(
    ("modules", "expected"),
    [(["layers.12"], 4), (["lm_head"], 1), (["mlp"], 16), (["layers.12", "layers.14.mlp"], 4)],
)
def test_named_modules_are_forecast_from_the_first_layer_that_holds_one(modules: Any, expected: int) -> None:
    config = config_of(method__kind="freeze", method__freeze__modules=modules)
    assert planner_case(config, dtype="bf16").freeze_last_layers == expected


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(golden(), indent=1) + "\n", encoding="utf-8")
