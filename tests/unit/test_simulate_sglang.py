"""What becomes of a pass that SGLang's own code was played through: forecast, verdict, refusals."""

from __future__ import annotations

import json
import sys

import pytest

import planner
from llmsys_exp.cli.main import run
from planner.errors import CaseError, NotSimulated
from planner.simulate.serving import request as asking
from planner.simulate.serving import sglang as tier
from planner.units import GIB, MIB

UNKNOWN = {
    "model_type": "arcee", "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 32_000, "max_position_embeddings": 4096,
}  # fmt: skip


def _case(**more):
    case = {"kind": "serve", "engine": "sglang", "engine_version": "0.5.17", "gpu": "h200",
            "hf_config": planner.model_config("qwen2_5_7b"), "context_length": 16_384}  # fmt: skip
    return {**case, **more}


def _answer(prefill_mib=1112, decode_mib=400, loaded_gib=14.35, **more):
    passes = [
        {"kind": "prefill", "rests_bytes": 0, "model_bytes": prefill_mib * MIB, "sampler_bytes": MIB},
        {"kind": "decode", "rests_bytes": 0, "model_bytes": MIB, "sampler_bytes": decode_mib * MIB},
    ]
    answer = {
        "version": "0.5.17", "model": "Qwen2ForCausalLM", "attention_layers": 28, "layers": 28, "settings": {},
        "kv_elements": 28_672, "loaded_bytes": int(loaded_gib * GIB), "passes": passes,
        "reserved_bytes": (prefill_mib + 100) * MIB,
    }  # fmt: skip
    return {**answer, **more}


@pytest.fixture
def played(monkeypatch):
    """What was asked of SGLang; its answer can be changed."""
    asked = {"answer": _answer()}

    def run(request, *, python=None):
        asked.update(request=request, python=python)
        return asked["answer"]

    monkeypatch.setattr(tier, "run_child", run)
    return asked


def test_weights_and_passes_are_those_of_the_real_code(played):
    found = planner.predict(_case(), tier="simulate", sglang_python="/some/python")
    assert found.tier == "simulate" and found.weights_bytes == int(14.35 * GIB)
    assert found.activations_bytes == 1112 * MIB and found.logits_bytes == 100 * MIB
    assert found.label == "fits" and played["python"] == "/some/python"
    said = found.to_dict()["simulated"]
    assert said["formula_label"] == "fits" and said["passes"] == played["answer"]["passes"]
    formula = planner.predict(_case())
    reserve = formula.activations_bytes + formula.logits_bytes
    assert said["difference"] == round(1212 * MIB / reserve - 1, 4)


def test_what_is_played_is_the_chunk_and_the_step_that_the_formula_counts(played):
    config = {**planner.model_config("qwen2_5_7b"), "dual_chunk_attention_config": {"chunk_size": 1}}
    planner.predict(_case(hf_config=config, input_tokens=1024, output_tokens=1024), tier="simulate")
    asked = played["request"]
    assert asked["passes"][0] == {"kind": "prefill", "tokens": 8192, "requests": 8, "picks": "top_p"}
    assert asked["passes"][1]["kind"] == "decode" and asked["passes"][1]["seen_tokens"] == 2048
    assert "dual_chunk_attention_config" not in asked["config"]
    assert asked["card"]["capability"] == [9, 0] and asked["backend"] == "fa3"
    assert asked["arguments"]["sampling_backend"] == "flashinfer"
    planner.predict(_case(sorts_vocabulary=True), tier="simulate")
    assert played["request"]["arguments"]["sampling_backend"] == "pytorch"


def test_a_pass_that_finds_no_room_does_not_fit(played):
    played["answer"] = _answer(prefill_mib=40_000)
    found = planner.predict(_case(), tier="simulate")
    assert found.label == "does not fit" and not found.fits
    assert "activations and logits need 39.2 GiB" in found.cause


def test_where_only_the_formula_sees_no_room_the_verdict_is_tight(played):
    case = _case(mem_fraction_static=0.99)
    assert planner.predict(case).label != "fits"
    played["answer"] = {**_answer(prefill_mib=1, decode_mib=1), "reserved_bytes": MIB}
    assert planner.predict({**case, "mem_fraction_static": 0.982}, tier="simulate").label == "tight"


@pytest.mark.parametrize("asked", ["simulate", "auto"])
def test_a_family_without_a_formula_is_what_the_code_says(played, asked):
    played["answer"] = _answer(kv_elements=4096, attention_layers=3, layers=4, loaded_gib=1.0)
    found = planner.predict(_case(hf_config=UNKNOWN, context_length=4096), tier=asked)
    assert found.kv_bytes_per_token == 2 * 4096 and found.weights_bytes == GIB
    assert found.simulated["settings"] == {} and "difference" not in found.simulated
    assert any("1 of 4 layers keep no keys" in note for note in found.notes)
    assert any("no formula knows this family" in note for note in found.notes)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hf_config": {**UNKNOWN, "vocab_size": -1}}, "hf_config.vocab_size is -1"),
        ({"quantization": "fp8"}, "does not take quantised weights for SGLang; use tier formula"),
        ({"gpu": "t4", "dtype": "fp16"}, "a card on which SGLang's kernels do not run"),
        ({"gpu": "h900"}, "h900"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_starts(played, more, said):
    with pytest.raises(CaseError, match=said):
        planner.predict(_case(**more), tier="simulate")
    assert "request" not in played


def test_an_interpreter_without_sglang_is_named(monkeypatch):
    monkeypatch.delenv(asking.PYTHON, raising=False)
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(
        NotSimulated, match="has no sglang; name an interpreter that has it: LLMSYS_SGLANG_PYTHON"
    ):
        planner.predict(_case(), tier="simulate", sglang_python=_without_sglang())


def test_the_plan_shows_both_and_what_each_pass_held(played, capsys):
    row = {"bytes": 592 * MIB, "count": 2, "operator": "mm", "module": "model.layers.*.mlp.gate_up_proj"}
    played["answer"]["passes"][0] |= {"tokens": 8192, "requests": 7, "largest": [row, {**row, "bytes": 12}]}
    played["answer"]["passes"][1] |= {"requests": 9, "largest": []}
    words = ["model=qwen2_5_7b", "hardware=h200", "inference=sglang", "inference.sglang.python=/its/python"]
    assert run(["plan", "steps=[infer]", *words, "--tier", "simulate"]) == 0
    text = capsys.readouterr().out
    assert "Beside the simulate tier" in text and played["python"] == "/its/python"
    assert "Largest in a chunk of 8192 tokens, 7 requests (1112.00 MiB in all), MiB" in text
    assert "1184.00  2 x 592.00  mm        model.layers.*.mlp.gate_up_proj" in text
    assert "Largest in a decode step, 9 requests (400.00 MiB in all)" in text
    assert "SGLang 0.5.17's own code of Qwen2ForCausalLM" in text


def test_a_plan_of_a_family_without_a_formula_says_what_can_be_done(played, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN))
    words = ["model=local", f"model.path={tmp_path}", "hardware=h200", "inference=sglang"]
    assert run(["plan", "steps=[infer]", *words, "--tier", "simulate"]) == 2
    said = capsys.readouterr().err
    assert "none knows arcee" in said and "Use inference.engine=transformers" in said


def _without_sglang():
    from importlib.util import find_spec

    if find_spec("sglang") is not None:
        pytest.skip("SGLang is installed here")
    return sys.executable


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import sys; sys.exit('no such library')", "the process that plays SGLang ended: no such library"),
        (
            'print(\'{"refused": "KeyError: x in module model"}\')',
            "cannot be simulated: KeyError: x in module",
        ),
        ("import time; time.sleep(60)", "took more than 0.3 s"),
    ],
)
def test_a_process_that_ends_otherwise_is_one_message(tmp_path, monkeypatch, body, said):
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable} -S\n{body}\n")
    python.chmod(0o755)
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.3)
    with pytest.raises(NotSimulated, match=said):
        asking.run_child({}, python=str(python))


def test_an_interpreter_that_is_not_there_is_one_message(tmp_path):
    with pytest.raises(NotSimulated, match="cannot be started: No such file"):
        asking.run_child({}, python=str(tmp_path / "nothing"))
