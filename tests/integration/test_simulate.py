"""The simulation against the formula, family by family, against what was measured, and what it refuses."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planner
from benchmarks.measured import measured_rows
from benchmarks.trace_check.configs import CONFIGS, TARGETS, config_of
from planner.errors import CaseError
from planner.units import GIB

pytestmark = pytest.mark.engine
TOLERANCE = 0.01
# Measured with transformers 5.17, as the formula has it, angles were a matrix product, which takes cuBLAS's workspace;
# since 5.23 they are none, and every linear layer of phi has a bias, which takes cuBLASLt's.
OTHER_ROTARY = {f"{phase} {step}": 0.62 for phase in ("forward", "step") for step in (1, 2, 3)}
OTHER_ROTARY |= dict.fromkeys(("backward 1", "backward 2", "backward 3", "peak", "reserved"), 0.032)
LOOSE: dict[str, dict[str, float]] = {
    # while it is built more passes through than the formula says, and its one key head is spread over all
    "gpt_bigcode": {"load": 0.12, "engine start": 0.05, "forward 1": 0.015, "step 1": 0.015},
    "falcon": {"forward 1": 0.012},
    "gemma2": {"forward 1": 0.017},
    "phi": OTHER_ROTARY,
}
"""Phases that differ by more, most of them because a small model's first phases are a few tensors."""
MEASURED = {"v041": 0.0, "v039": 0.0, "w040": 0.0, "w026": 0.0, "t016": 0.0}
"""Full at stages 2, 3 and offloaded, frozen layers, adapters in fp16 at stage 0: how far the allocated peak is off."""
UNKNOWN = Path(__file__).parents[2] / "benchmarks/results/h200-2026-11-30-unknown-measured.jsonl"
SMALL = {**config_of("llama"), "num_hidden_layers": 2}
LORA = {"method": "lora", "lora": {"r": 4, "target_modules": "all-linear"}}


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


def case(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"hf_config": config, "method": "full", "world_size": 2, "zero_stage": 2, "seq_len": 256, **more}


def simulation(content: dict[str, Any], **more: Any) -> Any:
    from planner.simulate.tier import simulation as simulate

    return simulate(content, **more)


def differences(content: dict[str, Any]) -> dict[str, float]:
    """Formula over simulation - 1 for the peaks of each phase, reserved memory among them."""
    simulated, played = simulation(content).forecast, planner.predict(content)
    assert isinstance(played, planner.Forecast)
    found = {name: played.phases[name] / size - 1 for name, size in simulated.phases.items()}
    found["peak"] = played.peak_allocated_bytes / simulated.peak_allocated_bytes - 1
    found["reserved"] = played.peak_reserved_bytes / simulated.peak_reserved_bytes - 1
    return found


@pytest.mark.parametrize("family", CONFIGS)
def test_formula_and_simulation_agree_on_every_family(family: str) -> None:
    assert too_far(family, case(config_of(family), micro_batch=2, attention=attention_of(family))) == {}


def too_far(family: str, content: dict[str, Any], *, leave_out: str = "") -> dict[str, float]:
    """Phases whose peaks differ by more than is tolerated."""
    loose, found = LOOSE.get(family, {}), differences(content)
    return {
        name: size
        for name, size in found.items()
        if abs(size) > loose.get(name, TOLERANCE) and name != leave_out
    }


def attention_of(family: str) -> str:
    config = config_of(family)
    architecture = planner.parse_training_case({"hf_config": config, "method": "full"}).architecture
    return "sdpa" if architecture.sdpa else "eager"


@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek_v3", "qwen2_moe", "opt"])
def test_they_agree_on_adapters_at_stage_3_with_checkpointing(family: str) -> None:
    config = config_of(family)
    adapters = {**LORA, "lora": {"r": 4, "target_modules": TARGETS.get(family, "all-linear")}}
    content = case(
        config, **adapters, zero_stage=3, gradient_checkpointing=True, attention=attention_of(family)
    )
    # peft's adapters pass through fp32 while they are made, and experts in pieces
    assert too_far(family, content, leave_out="load") == {}


def test_auto_of_a_pasted_file_is_settled_as_transformers_does() -> None:
    auto = {"reduce_bucket_size": "auto", "param_persistence_threshold": "auto"}
    written = {"reduce_bucket_size": 256 * 256, "stage3_param_persistence_threshold": 2560}
    contents = [case(SMALL, zero_stage=3, deepspeed={"zero_optimization": one}) for one in (auto, written)]
    assert len({simulation(content).forecast.peak_allocated_bytes for content in contents}) == 1


@pytest.mark.parametrize("row", MEASURED)
def test_measured_rows_are_met_to_the_byte_or_nearly(row: str) -> None:
    (found,) = [one for one in measured_rows() if one["id"] == row]
    content = {**found["case"], "memory_limit_gib": None}
    peak_gib = simulation(content).forecast.peak_allocated_bytes / GIB
    # torch and transformers have moved on since: a few hundred bytes
    assert peak_gib / found["measured"]["peak_allocated_gib"] - 1 == pytest.approx(MEASURED[row], abs=2e-5)


def test_a_family_that_no_formula_knows_is_as_it_was_measured() -> None:
    lines = UNKNOWN.read_text(encoding="utf-8").splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    for name in ("u001", "u007"):  # arcee and nemotron
        row = rows[name]
        forecast = planner.predict(row["case"], tier="auto")
        assert isinstance(forecast, planner.Forecast) and forecast.tier == "simulate"
        measured = row["measured"]["peak_allocated_gib"]
        assert forecast.peak_allocated_bytes / GIB == pytest.approx(measured, rel=1e-6)


def test_stage_3_may_be_the_first_that_a_process_simulates() -> None:
    line = json.dumps({"id": "first", "case": case({**SMALL, "model_type": "qwen2"}, zero_stage=3)})
    command = [sys.executable, "-m", "planner", "predict", "/dev/stdin", "--tier", "simulate"]
    done = subprocess.run(command, input=line, capture_output=True, text=True, timeout=120, check=False)
    assert "error" not in json.loads(done.stdout)


def test_cases_do_not_disturb_one_another() -> None:
    full, sharded = case(SMALL), case(SMALL, world_size=4, zero_stage=3)
    alone = [simulation(one).forecast.peak_allocated_bytes for one in (full, sharded)]
    again = [simulation(one).forecast.peak_allocated_bytes for one in (sharded, full)]
    assert again == alone[::-1]


def test_a_repeated_step_is_as_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.simulate import run

    content = case(SMALL, zero_stage=3, gradient_checkpointing=True, micro_batch=2)
    repeated = simulation(content).forecast
    monkeypatch.setattr(run, "repeat", lambda *_: None)
    real = simulation(content).forecast
    assert repeated.phases == real.phases
    assert repeated.peak_reserved_bytes == real.peak_reserved_bytes


def test_each_rank_has_its_own_part() -> None:
    content = case(SMALL, zero_stage=1, world_size=3)
    peaks = {simulation(content, rank=rank).forecast.start_peak_bytes for rank in range(3)}
    assert max(peaks) - min(peaks) < 0.01 * max(peaks)
    with pytest.raises(CaseError, match="between 0 and 2"):
        simulation(content, rank=3)


def test_what_was_largest_at_the_peak_is_named() -> None:
    from planner.simulate.peak import largest_at_peak, phases_at, timeline

    done = simulation(case(SMALL, micro_batch=4))
    rows = largest_at_peak(done.run.recorder)
    assert len(rows) == 10 and rows == sorted(rows, key=lambda row: -row.total_bytes)
    assert {"activations", "weights"} <= {row.component for row in rows}
    assert any("layers.*" in row.module and row.count == 2 for row in largest_at_peak(done.run.recorder, 40))
    points = timeline(done.run.arena, most=200)
    highest = max(sum(point["bytes"].values()) for point in points)
    # without what the allocator rounds up
    assert 0 <= done.forecast.peak_allocated_bytes - highest < 0.001 * highest
    assert phases_at(done.run.arena)[0][:2] == ("load", 0)


def test_the_memory_viewer_reads_the_snapshot() -> None:
    from torch.cuda._memory_viz import trace_plot

    from planner.simulate.peak import snapshot_bytes

    done = simulation(case(SMALL))
    content = pickle.loads(snapshot_bytes(done.run.recorder))  # our own
    (trace,) = content["device_traces"]
    taken = sum(one["action"] == "alloc" for one in trace)
    assert taken == sum(nbytes > 0 for _, nbytes, _ in done.run.arena.events)
    assert "MemoryViz" in trace_plot(content)


def test_operators_remembered_by_shape_give_what_torch_gives() -> None:
    import torch

    from planner.simulate.shapes import Shapes

    shapes = Shapes()
    left, right = torch.empty(4, 8, device="meta"), torch.empty(8, 2, device="meta", dtype=torch.float32).t()
    for func, args in (
        (torch.ops.aten.mm.default, (left, right.t())),
        (torch.ops.aten.add.Tensor, (left, 1.0)),
        (torch.ops.aten.transpose.int, (left, 0, 1)),
        (torch.ops.aten.native_layer_norm.default, (left, [8], None, None, 1e-5)),
    ):
        wanted = func(*args)
        for _ in range(2):
            found = shapes.run(func, args, {})
            pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
            for ours, theirs in pairs:
                assert (ours.shape, ours.stride(), ours.dtype) == (
                    theirs.shape,
                    theirs.stride(),
                    theirs.dtype,
                )
    assert shapes.run(torch.ops.aten.mul_.Tensor, (left, 2.0), {}) is left
    small = torch.ones(3)
    assert shapes.run(torch.ops.aten.mul_.Tensor, (small, 2.0), {}).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(RuntimeError):
        shapes.run(torch.ops.aten.copy_.default, (left, torch.empty(3, 3, device="meta")), {})


def test_offloaded_state_takes_no_memory_of_this_machine() -> None:
    import resource

    wide = {**SMALL, "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 128_000}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = case(wide, zero_stage=3, world_size=1, offload_optimizer="cpu", offload_param="cpu")
    forecast = simulation(content).forecast
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert forecast.host_peak_bytes > 10 * GIB
    assert grown < GIB


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such family": (
        {"hf_config": {**SMALL, "model_type": "lamma"}},
        "no such language model. Did you mean llama",
    ),
    "layers that are words": ({"hf_config": {**SMALL, "num_hidden_layers": "4"}}, "num_hidden_layers"),
    "layers below none": (
        {"hf_config": {**SMALL, "model_type": "arcee", "num_hidden_layers": -2}},
        "num_hidden_layers is -2; it must lie between 1 and 2,000",
    ),
    "heads that do not divide": (
        {"hf_config": {**SMALL, "model_type": "arcee", "num_attention_heads": 3}},
        "no multiple of num_key_value_heads",
    ),
    "no model": ({"hf_config": None}, "config.json"),
    "another program": ({"attention_code": "litgpt"}, "does not take LitGPT's code; use tier formula"),
    "no such target": ({**LORA, "lora": {"target_modules": ["qproj"]}}, "qproj"),
    "attention that transformers lacks": (
        {"hf_config": {"model_type": "gptj", "n_layer": 1, "n_embd": 64, "n_head": 4, "rotary_dim": 16}},
        "gptj has no sdpa in this transformers",
    ),
    "two things at once": ({"zero_stage": 2, "offload_param": "cpu"}, "offload_param needs zero_stage 3"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_simulated_is_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CaseError) as refusal:
        planner.predict({**case(SMALL), **change}, tier="simulate")
    assert said in str(refusal.value)


def test_known_families_are_played_by_tier_auto() -> None:
    forecast = planner.predict(case(SMALL), tier="auto")
    assert isinstance(forecast, planner.Forecast) and forecast.tier == "formula"
    with pytest.raises(CaseError, match="not 'dpo'"):
        planner.predict({"kind": "dpo"}, tier="simulate")


@pytest.mark.parametrize(
    ("family", "shape", "tolerance"),
    [
        ("llama", {"batch_size": 4, "input_tokens": 512, "output_tokens": 64}, 0.01),
        ("qwen3", {"batch_size": 2, "input_tokens": 300, "output_tokens": 8, "padded": False}, 0.01),
        ("llama", {"batch_size": 8, "input_tokens": 4, "output_tokens": 900}, 0.02),
    ],
)
def test_answers_of_transformers_are_simulated_too(
    family: str, shape: dict[str, Any], tolerance: float
) -> None:
    wide = {**config_of(family), "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32_000}
    content = {"kind": "serve", "engine": "transformers", "hf_config": wide, "gpu": "h200", **shape}
    simulated, played = (planner.predict(content, tier=tier) for tier in ("simulate", "formula"))
    assert simulated.tier == "simulate" and simulated.phase == played.phase
    assert sum(simulated.components.values()) == simulated.peak_allocated_bytes
    assert played.peak_allocated_bytes == pytest.approx(simulated.peak_allocated_bytes, rel=tolerance)


def test_sglang_is_not_simulated_without_an_interpreter_that_holds_it() -> None:
    case = {"kind": "serve", "hf_config": SMALL, "gpu": "h200"}
    with pytest.raises(CaseError, match="/nowhere/python cannot be started"):
        planner.predict(case, tier="simulate", sglang_python="/nowhere/python")
