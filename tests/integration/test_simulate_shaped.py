"""The simulation with stand-ins for kernels that need a GPU: against what was measured, and against the formula."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from benchmarks.measured import measured_rows
from benchmarks.trace_check.configs import config_of
from planner.errors import CaseError
from planner.units import GIB

pytestmark = pytest.mark.engine
TOLERANCE = 0.01
PLAIN_RESERVED = 0.03
"""Fragments of a few MiB, where a small model's gradients have no flat place of their own."""
MEASURED = ("w004", "w019", "x008", "v026")
"""Paged 8-bit AdamW at stage 2; Liger's loss; an 8-bit and a 4-bit base."""
SMALL = {**config_of("llama"), "num_hidden_layers": 2}
LORA = {"method": "lora", "lora": {"r": 4, "target_modules": "all-linear"}}
PLAIN = {"engine": "plain", "zero_stage": 0, "world_size": 1, "optimizer": "torch_adamw"}
CHECKPOINTS: dict[str, Any] = {"gradient_checkpointing": True}


def packed(**quantization: Any) -> dict[str, Any]:
    return {**LORA, "method": "qlora", "quantization": {"bits": 4, **quantization}}


def deepspeed_checkpoints(*, cpu: bool) -> dict[str, Any]:
    return {**CHECKPOINTS, "checkpointing": {"kind": "deepspeed", "cpu": cpu}}


AGREE: dict[str, dict[str, Any]] = {
    "fused AdamW": {**PLAIN, "optimizer": "torch_adamw_fused"},
    "fused AdamW offloaded": {"optimizer": "torch_adamw_fused", "offload_optimizer": "cpu"},
    "8-bit AdamW": {"optimizer": "adamw_8bit", "zero_stage": 3},
    "paged AdamW": {**PLAIN, "optimizer": "paged_adamw"},
    "a loss in chunks": {"loss": "chunked"},
    "DeepSpeed's checkpoints": deepspeed_checkpoints(cpu=False),
    "in main memory": {**deepspeed_checkpoints(cpu=True), **LORA},
    "4 bit": packed(),
    "4 bit, scales whole": {**packed(double_quant=False), **PLAIN},
    "4 bit with its head": {**packed(head=True), **CHECKPOINTS},
    "4 bit of old": packed(bnb_version="0.42.0"),
    "4 bit of transposed layers": {
        "hf_config": {**config_of("gpt2"), "n_layer": 2},
        **packed(),
        "lora": {"r": 4, "target_modules": ["c_attn"]},
    },
    "4 bit through fp32": packed(unpacked_dtype="fp32"),
    "8 bit": {**packed(bits=8, double_quant=False), **CHECKPOINTS},
    "Liger": {"liger": True, "hf_config": {**config_of("qwen3"), "num_hidden_layers": 2}},
    "Liger at stage 3": {"liger": True, "zero_stage": 3, **LORA, **CHECKPOINTS},
    "two of Liger's": {"liger": True, "liger_kernels": ["rms_norm", "swiglu"], "loss": "chunked"},
}


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


def case(**more: Any) -> dict[str, Any]:
    base = {"hf_config": SMALL, "method": "full", "world_size": 2, "zero_stage": 2}
    return {**base, "seq_len": 512, "micro_batch": 2, **more}


def forecast(content: dict[str, Any], tier: str) -> planner.Forecast:
    found = planner.predict(content, tier=tier)
    assert isinstance(found, planner.Forecast)
    return found


@pytest.mark.parametrize("row", MEASURED)
def test_measured_rows_are_met_to_the_byte_or_nearly(row: str) -> None:
    (found,) = [one for one in measured_rows() if one["id"] == row]
    simulated = forecast({**found["case"], "memory_limit_gib": None}, "simulate")
    measured = found["measured"]
    assert simulated.peak_allocated_bytes / GIB == pytest.approx(measured["peak_allocated_gib"], rel=3e-5)
    assert simulated.peak_reserved_bytes / GIB == pytest.approx(measured["peak_reserved_gib"], rel=1e-3)


@pytest.mark.parametrize("change", AGREE.values(), ids=AGREE.keys())
def test_formula_and_simulation_agree(change: dict[str, Any]) -> None:
    content = case(**change)
    simulated, played = forecast(content, "simulate"), forecast(content, "formula")
    assert played.peak_allocated_bytes == pytest.approx(simulated.peak_allocated_bytes, rel=TOLERANCE)
    assert played.peak_reserved_bytes == pytest.approx(simulated.peak_reserved_bytes, rel=PLAIN_RESERVED)
    assert simulated.host == played.host and simulated.disk == played.disk


def test_paged_state_and_packed_weights_are_less() -> None:
    peaks = {
        name: forecast(case(**change), "simulate").peak_allocated_bytes
        for name, change in {
            "whole": {"optimizer": "adamw_8bit"},
            "paged": {"optimizer": "paged_adamw_8bit"},
            "LoRA": {**LORA, "seq_len": 128},
            "packed": {**packed(prepare_for_kbit_training=False), "seq_len": 128},
        }.items()
    }
    assert peaks["paged"] < peaks["whole"] and peaks["packed"] < peaks["LoRA"]


def test_everything_is_put_back() -> None:
    from deepspeed.runtime.activation_checkpointing import checkpointing
    from torch.optim.optimizer import _get_fused_kernels_supported_devices
    from transformers.models.llama import modeling_llama

    rotary = modeling_llama.apply_rotary_pos_emb
    forecast(case(**deepspeed_checkpoints(cpu=True), liger=True), "simulate")
    assert modeling_llama.apply_rotary_pos_emb is rotary
    assert checkpointing.CPU_CHECKPOINT is False and checkpointing._cpu_offload_engine is None
    assert "meta" not in _get_fused_kernels_supported_devices()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "packed and sharded": (
        {**packed(), "zero_stage": 3},
        "quantised weights at zero_stage 3; use tier formula",
    ),
    "gptq": ({**LORA, "method": "qlora", "quantization": {"kind": "gptq", "bits": 4}}, "a gptq base"),
    "packed with DoRA": ({**packed(), "lora": {"r": 4, "use_dora": True}}, "use_dora on quantised weights"),
    "another family's kernels": (
        {"hf_config": config_of("gemma2"), "liger": True},
        "Liger kernels in gemma2",
    ),
    "a token that is none": (
        {"hf_config": {**SMALL, "pad_token_id": 1_000_000}},
        "pad_token_id is 1000000, but the vocabulary has",
    ),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_simulated_is_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CaseError) as refusal:
        forecast(case(**change), "simulate")
    assert said in str(refusal.value)
