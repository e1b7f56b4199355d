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
    "bucket": ({"deepspeed": {"zero_optimization": {"sub_group_size": "auto"}}}, "must be a count of elements"),
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


QLORA = {**LORA, "method": "qlora"}
JUNK = [True, -1, 1.5, float("nan"), float("inf"), 1e308, 10**30, "x", [None], [[1]], {"a": {"b": 1}}]
FINE = {
    ("quantization.double_quant", "True"),
    ("deepspeed.zero_optimization.overlap_comm", "True"),
    ("deepspeed.zero_optimization.reduce_bucket_size", "1.5"),
    ("deepspeed", "{'a': {'b': 1}}"),  # DeepSpeed's other sections do not matter here
    ("memory_limit_gib", "1.5"),
    ("freeze.last_layers", str(10**30)),  # used by the method freeze only
}
SERVE = {"kind": "serve", "hf_config": GOOD["hf_config"], "gpu": {"total_mib": 81559}}


@pytest.mark.parametrize("junk", JUNK, ids=repr)
@pytest.mark.parametrize(
    "path",
    ["lora.target_modules", "lora.dropout", "quantization.quant_type", "quantization.double_quant", "deepspeed",
     "deepspeed.zero_optimization.reduce_bucket_size", "deepspeed.zero_optimization.overlap_comm", "memory_limit_gib",
     "freeze.last_layers", "gpu", "hf_config.num_key_value_heads", "hf_config.head_dim"],
)  # fmt: skip
def test_junk_anywhere_is_refused_and_never_crashes(path, junk):
    case = json.loads(
        json.dumps({**GOOD, **QLORA, "quantization": {}, "deepspeed": {"zero_optimization": {}}})
    )
    *sections, last = path.split(".")
    place = case
    for name in sections:
        place = place.setdefault(name, {})
    place[last] = junk
    if (path, repr(junk)) in FINE:
        planner.predict(case)
        return
    with pytest.raises(planner.CaseError):
        planner.predict(case)


@pytest.mark.parametrize("junk", [True, -5, float("nan"), 10**30, "x", [None], {"a": 1}], ids=repr)
@pytest.mark.parametrize(
    "key", ["chunked_prefill_size", "context_length", "prefill_cuda_graph", "gpu", "dtype"]
)
def test_junk_in_a_serving_case_is_refused(key, junk):
    if (key, junk) == ("prefill_cuda_graph", True):
        return
    with pytest.raises(planner.CaseError):
        planner.predict({**SERVE, key: junk})


@pytest.mark.parametrize(
    ("family", "key"),
    [("mistral", "sliding_window"), ("gemma3_text", "sliding_window_pattern"), ("gpt2", "n_inner")],
)
def test_junk_in_the_habits_of_a_family_is_refused(family, key):
    for junk in ([], 0, float("nan"), "x"):
        with pytest.raises(planner.CaseError, match=key):
            planner.predict({**GOOD, "hf_config": {**GOOD["hf_config"], "model_type": family, key: junk}})


def test_more_frozen_layers_than_the_model_has():
    with pytest.raises(planner.CaseError, match="the model has 2 layers"):
        planner.predict({**GOOD, "method": "freeze", "freeze": {"last_layers": 3}})


def test_lines_that_json_itself_cannot_hold(tmp_path):
    good = json.dumps({"id": {"a": [float("nan")]}, "case": GOOD})
    lines = ["[" * 100_000, '{"id": 1, "case": {"micro_batch": ' + "9" * 5000 + "}}", good]
    (tmp_path / "cases.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    done = run(tmp_path / "cases.jsonl")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr, len(answers)) == (1, "", 3)
    assert "error" in answers[0] and "error" in answers[1]
    assert answers[2]["id"] == "line 3" and "peak_allocated_gib" in answers[2]
