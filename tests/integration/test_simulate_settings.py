"""The simulation of settings whose code changes with the model family, the ranks or the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from benchmarks.trace_check.configs import config_of
from planner.liger import LIGER_FAMILIES
from planner.units import GIB, MIB

pytestmark = pytest.mark.engine
SMALL = {**config_of("llama"), "num_hidden_layers": 2}
ROWS = Path(__file__).parents[2] / "benchmarks/results/h200-2026-11-30-coverage-measured.jsonl"
MEASURED = ("c01", "c05", "c07", "c10", "c16", "c19", "c20", "c23", "c26", "c29")
"""Weights alone offloaded; 4 and 8 bit sharded; Gemma 3, a mixture and Gemma 2 with Liger; GPTQ; Ulysses; DoRA over
4 bit; all on NVMe."""


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


def simulated(config: dict[str, Any], **more: Any) -> planner.Forecast:
    content = {"method": "full", "world_size": 2, "zero_stage": 2, "seq_len": 512, "micro_batch": 4, **more}
    found = planner.predict({"hf_config": config, **content}, tier="simulate")
    assert isinstance(found, planner.Forecast)
    return found


@pytest.mark.parametrize("row", MEASURED)
def test_what_was_measured_on_an_h200(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lines = ROWS.read_text(encoding="utf-8").splitlines()
    (found,) = [one for one in map(json.loads, lines) if one["id"] == row]
    forecast = planner.predict(found["case"], tier="simulate")
    assert isinstance(forecast, planner.Forecast)
    measured = found["measured"]
    assert forecast.peak_allocated_bytes / GIB == pytest.approx(measured["peak_allocated_gib"], rel=5e-4)
    assert forecast.peak_reserved_bytes / GIB == pytest.approx(measured["peak_reserved_gib"], rel=0.015)
    assert not list(tmp_path.glob("llmsys-nvme-*"))  # where DeepSpeed swaps to


@pytest.mark.parametrize("family", {habits: name for name, habits in LIGER_FAMILIES.items()}.values())
def test_liger_keeps_less_in_every_family(family: str) -> None:
    config = {**config_of(family), "num_hidden_layers": 2}
    sdpa = planner.parse_training_case({"hf_config": config, "method": "full"}).architecture.sdpa
    plain, fused = (
        simulated(config, liger=liger, attention="sdpa" if sdpa else "eager") for liger in (False, True)
    )
    # the experts' kernels are tuned at their first run, which takes memory of its own
    assert fused.phases["forward 2"] < plain.phases["forward 2"]
    assert fused.phases["engine start"] == plain.phases["engine start"]


def test_a_choice_of_ligers_kernels_is_the_familys() -> None:
    config = {**config_of("gemma2"), "num_hidden_layers": 2}

    def forward(*kernels: str) -> int:
        more = {"liger": True, "liger_kernels": list(kernels), "attention": "eager"}
        return simulated(config, **more).phases["forward 2"]

    none = forward("rope")
    assert forward("rope", "swiglu") == none  # GeGLU is there anyway
    assert forward("rope", "rms_norm") < none and forward("rope", "fused_linear_cross_entropy") < none


def test_granites_logits_are_there_with_liger_too() -> None:
    config = {**config_of("granite"), "num_hidden_layers": 2, "vocab_size": 64_000}
    logits = 4 * 512 * 64_000 * 4
    fused, llama = (simulated({**config, "model_type": name}, liger=True) for name in ("granite", "llama"))
    assert fused.phases["forward 2"] - llama.phases["forward 2"] > logits


def test_sequences_are_shared_as_deepspeed_does_it() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ways = ALL_ATTENTION_FUNCTIONS["sdpa"]
    wide = {**SMALL, "hidden_size": 1024, "intermediate_size": 2816}
    shape = {"world_size": 4, "seq_len": 4096, "micro_batch": 1, "dtype": "bf16"}
    whole, half = (simulated(wide, sequence_parallel=ranks, **shape) for ranks in (1, 2))
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is ways
    start = whole.phases["engine start"]
    assert half.phases["engine start"] == start
    assert half.phases["forward 2"] - start < 0.7 * (whole.phases["forward 2"] - start)
    # with sequences shared, gradients travel in fp32, and so does the bucket that they wait in at stage 3
    sharded = [simulated(wide, sequence_parallel=ranks, zero_stage=3, **shape) for ranks in (1, 2)]
    grown = sharded[1].phases["engine start"] - sharded[0].phases["engine start"]
    assert grown == pytest.approx(500_000_000 * 2, abs=2 * MIB)
