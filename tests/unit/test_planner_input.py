"""What the planner refuses, and how it says so."""

import json
import subprocess
import sys

import pytest

import planner

GOOD = {
    "hf_config": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "vocab_size": 256},
    "method": "full",
}  # fmt: skip
LORA = {"method": "lora", "lora": {"r": 4}}

REFUSED = {
    "unknown key": ({"micro_bach": 2}, "unknown key 'micro_bach'. Did you mean micro_batch?"),
    "unknown family": ({"hf_config": {"model_type": "lama"}}, "Did you mean llama?"),
    "missing size": ({"hf_config": {"model_type": "llama", "hidden_size": 64}}, "num_attention_heads"),
    "negative size": ({"hf_config": {**GOOD["hf_config"], "hidden_size": -4}}, "hf_config.hidden_size is -4"),
    "heads that do not divide": ({"hf_config": {**GOOD["hf_config"], "num_attention_heads": 5}}, "not a multiple"),
    "world size 0": ({"world_size": 0}, "world_size is 0; it must be a whole number from 1"),
    "micro batch as text": ({"micro_batch": "2"}, "micro_batch is '2'"),
    "flag as text": ({"liger": "yes"}, "liger is 'yes'; it must be true or false"),
    "unknown method": ({"method": "loro"}, "method is 'loro'; known: full, freeze, lora, qlora"),
    "offload without sharding": ({"offload_optimizer": "cpu"}, "offload_optimizer needs zero_stage 1, 2 or 3"),
    "parameter offload at stage 2": ({"zero_stage": 2, "offload_param": "cpu"}, "offload_param needs zero_stage 3"),
    "nvme optimizer at stage 2": ({"zero_stage": 2, "offload_optimizer": "nvme"}, "silently uses the cpu"),
    "nvme with frozen weights": ({**LORA, "zero_stage": 3, "offload_param": "nvme"}, "fails with frozen weights"),
    "lora without section": ({"method": "lora"}, "method lora needs a lora section"),
    "lora target": ({**LORA, "lora": {"target_modules": ["q_prj"]}}, "Did you mean q_proj?"),
    "lora rank": ({**LORA, "lora": {"r": 0}}, "lora.r is 0"),
    "unknown lora key": ({**LORA, "lora": {"rank": 4}}, "unknown key lora.rank"),
    "bits": ({**LORA, "method": "qlora", "quantization": {"bits": 3}}, "quantization.bits is 3"),
    "bucket": ({"deepspeed": {"zero_optimization": {"reduce_bucket_size": "auto"}}}, "must be a count of elements"),
    "unknown gpu": ({"gpu": "h2000"}, "Did you mean h200?"),
    "limit": ({"memory_limit_gib": -1}, "memory_limit_gib is -1"),
    "kind": ({"kind": "eval"}, "kind is 'eval'"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_the_reason(change, said):
    with pytest.raises(planner.CaseError) as refusal:
        planner.predict({**GOOD, **change})
    assert said in str(refusal.value)


def test_all_problems_are_named_at_once():
    with pytest.raises(planner.CaseError) as refusal:
        planner.predict({**GOOD, "world_size": 0, "dtype": "bf8", "zero_stage": 4})
    assert str(refusal.value).count(";") >= 2


def run(path):
    return subprocess.run(
        [sys.executable, "-m", "planner", "predict", str(path)], capture_output=True, text=True, check=False
    )


def test_a_bad_line_does_not_stop_the_others(tmp_path):
    cases = tmp_path / "cases.jsonl"
    lines = [{"id": "good", "case": GOOD}, {"id": "bad", "case": {**GOOD, "world_size": 0}}]
    cases.write_text("\n".join([json.dumps(lines[0]), "{", json.dumps(lines[1]), json.dumps(lines[0])]))
    done = run(cases)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [a.get("id") for a in answers] == ["good", "line 2", "bad", "good"]
    assert "not JSON" in answers[1]["error"]
    assert {"peak_allocated_gib", "required_gib", "peak_reserved_gib", "components", "seconds"} <= set(
        answers[3]
    )


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["missing", "not text"])
def test_an_unreadable_file_is_one_line(tmp_path, content):
    path = tmp_path / "cases.jsonl"
    if content is not None:
        path.write_bytes(content)
    done = run(path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_the_limit_decides_fits(tmp_path):
    cases = tmp_path / "cases.jsonl"
    rows = [{"id": str(limit), "case": {**GOOD, "memory_limit_gib": limit}} for limit in (0.01, 10)]
    cases.write_text("\n".join(map(json.dumps, rows)))
    assert [json.loads(line)["fits"] for line in run(cases).stdout.splitlines()] == [False, True]
