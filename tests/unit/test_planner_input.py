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

CHECKPOINTS = {"gradient_checkpointing": True}


def lora(**more):
    return {"method": "lora", "lora": {"r": 4, **more}}


def qlora(**quantization):
    return {**LORA, "method": "qlora", "quantization": quantization}


def zero(**settings):
    return {"deepspeed": {"zero_optimization": settings}}


def sums(kind, **more):
    return {"deepspeed": {"data_types": {"grad_accum_dtype": kind}}, **more}


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
    "no method": ({"method": None}, "method is None; known: full, freeze, lora, qlora"),
    "no model": ({"hf_config": "llama"}, "no hf_config: the model's config.json as a mapping"),
    "stage": ({"zero_stage": 4}, "zero_stage is 4; known: 0, 1, 2, 3"),
    "engine": ({"engine": "horovod"}, "engine is 'horovod'; known: deepspeed, plain, fsdp2"),
    "optimizer": ({"optimizer": "adam"}, "optimizer is 'adam'; known: deepspeed_adamw, torch_adamw"),
    "section that is no mapping": ({"checkpointing": True}, "checkpointing must be a mapping"),
    "section of DeepSpeed that is no mapping": ({"deepspeed": [1]}, "deepspeed must be a mapping"),
    "lora flag": (lora(use_dora="yes"), "lora.use_dora is 'yes'; it must be true or false"),
    "lora dropout": (lora(dropout=1), "lora.dropout is 1; a dropout rate lies in [0, 1)"),
    "adapter type": (lora(adapter_dtype="fp8"), "lora.adapter_dtype is 'fp8'; known: bf16, fp16, fp32"),
    "empty targets": (lora(target_modules=[]), "it must name at least one module, or be all-linear"),
    "targets of numbers": (lora(target_modules=[1]), "it must be all-linear or a list of names"),
    "modules to save as text": (lora(modules_to_save="lm_head"), "lora.modules_to_save is 'lm_head'; it must be a list"),
    "kind of base": (qlora(kind="awq"), "quantization.kind is 'awq'; known: bnb, gptq"),
    "group size": (qlora(kind="gptq", group_size=100), "quantization.group_size is 100; known: -1, 32, 64, 128"),
    "kind of checkpoints": ({**CHECKPOINTS, "checkpointing": {"kind": "reentrnt"}}, "Did you mean reentrant?"),
    "checkpoints on the cpu as text": ({**CHECKPOINTS, "checkpointing": {"cpu": 1}}, "checkpointing.cpu is 1; it must be true or false"),
    "checkpoints of transformers on the cpu": ({**CHECKPOINTS, "checkpointing": {"cpu": True}}, "it needs checkpointing.kind deepspeed"),
    "kernel": ({"liger": True, "liger_kernels": ["ropes"]}, "liger_kernels has 'ropes'. Did you mean rope?"),
    "kernels as text": ({"liger": True, "liger_kernels": "rope"}, "liger_kernels is 'rope'; it must be a list of names"),
    "frozen layers": ({"method": "freeze", "freeze": {"last_layers": 0}}, "it must be a whole number above 0"),
    "type of sums": (sums("fp8"), "deepspeed.data_types.grad_accum_dtype is 'fp8'; known: bf16, fp16, fp32"),
    "auto where there is none": (zero(sub_group_size="auto"), "sub_group_size is 'auto'; it must be a count of elements"),
    "bucket as text": (zero(reduce_bucket_size="big"), "it must be a count of elements, or auto"),
    "DeepSpeed flag": (zero(contiguous_gradients=1), "contiguous_gradients is 1; it must be true or false"),
    "DeepSpeed key": (zero(reduce_bucket=1), "unknown key deepspeed.zero_optimization.reduce_bucket. Did you mean reduce_bucket_size?"),
    "ZeRO++": (zero(zero_quantized_weights=True), "quantised gathers (ZeRO++) are not modelled; leave it out"),
    "hierarchy": (zero(zero_hpz_partition_size=8), "hierarchical partitioning (ZeRO++) is not modelled; leave it out"),
    "ratio": (zero(offload_optimizer={"ratio": 2}), "offload_optimizer.ratio is 2; it must lie between 0 and 1"),
}  # fmt: skip


GPTQ_DORA = {"method": "qlora", "lora": {"r": 4, "use_dora": True}, "quantization": {"kind": "gptq"}}
RING = {"world_size": 4, "seq_len": 512}
CONTRADICTIONS = {
    "offloaded weights at stage 0": ({"offload_param": "cpu"}, "offload_param needs zero_stage 3: below it DeepSpeed ignores it"),
    "pasted stage": (zero(stage=2), "deepspeed.zero_optimization.stage is 2, but zero_stage is 0; set zero_stage"),
    "pasted offload": (zero(offload_optimizer={"device": "cpu"}), "device is 'cpu', but offload_optimizer is 'none'; set offload_optimizer"),
    "ratio below stage 3": ({"zero_stage": 2, "offload_optimizer": "cpu", **zero(offload_optimizer={"ratio": 0.5})}, "ratio needs zero_stage 3 and offload_optimizer cpu"),
    "qlora without base": ({**LORA, "method": "qlora"}, "method qlora needs a quantization section"),
    "full with adapters": ({"lora": {"r": 4}}, "method full takes neither a lora nor a quantization section"),
    "lora with quantised base": ({**LORA, "quantization": {"bits": 4}}, "with a quantised base it is qlora"),
    "GPTQ at stage 3": (qlora(kind="gptq") | {"zero_stage": 3}, "a gptq base at zero_stage 3 is not modelled: its packed weights are no parameters"),
    "qlora with weights away": (qlora(bits=4) | {"zero_stage": 3, "offload_param": "cpu"}, "qlora with offload_param is not modelled; leave offload_param at none"),
    "DoRA at stage 3": (lora(use_dora=True) | {"zero_stage": 3}, "lora.use_dora at zero_stage 3 is not supported: peft reads"),
    "trained base with qlora": (qlora(bits=4) | {"lora": {"train_base": True}}, "a quantised base cannot be trained"),
    "DoRA on GPTQ": (GPTQ_DORA, "lora.use_dora on a gptq base: peft refuses it"),
    "plain with stage": ({"engine": "plain", "optimizer": "torch_adamw", "zero_stage": 2}, "zero_stage is DeepSpeed's; engine plain has none"),
    "plain in fp16": ({"engine": "plain", "optimizer": "torch_adamw", "dtype": "fp16"}, "dtype fp16 needs loss scaling"),
    "plain with DeepSpeed's Adam": ({"engine": "plain"}, "optimizer deepspeed_adamw is DeepSpeed's; engine plain takes torch_adamw"),
    "fsdp2 with qlora": (qlora(bits=4) | {"engine": "fsdp2", "optimizer": "torch_adamw"}, "engine fsdp2 with qlora is not modelled"),
    "ring and ranks": ({**RING, "sequence_parallel": 3}, "sequence_parallel 3 does not divide world_size 4"),
    "ring and length": ({**RING, "seq_len": 511, "sequence_parallel": 4}, "sequence_parallel 4 does not divide seq_len 511"),
    "ring and heads": ({"world_size": 8, "seq_len": 512, "sequence_parallel": 8}, "sequence_parallel 8 does not divide 4 attention heads"),
    "sums at stage 0": (sums("fp32"), "grad_accum_dtype other than dtype needs zero_stage 1, 2 or 3"),
    "narrow sums": (sums("bf16", dtype="fp32", zero_stage=2), "grad_accum_dtype bf16 with dtype fp32 is not modelled; use fp32"),
    "sums at stage 1 in fp16": (sums("fp32", dtype="fp16", zero_stage=1), "with dtype fp16 is not modelled; use zero_stage 2"),
    "sums with offload": (sums("fp32", zero_stage=1, offload_optimizer="cpu"), "with offload_optimizer is not modelled below zero_stage 3"),
    "8-bit Adam on the cpu": ({"zero_stage": 2, "offload_optimizer": "cpu", "optimizer": "adamw_8bit"}, "optimizer adamw_8bit has no CPU version to offload to; use"),
    "way of checkpointing without it": ({"checkpointing": {"kind": "reentrant"}}, "gradient_checkpointing is off"),
    "two losses": ({"liger": True, "loss": "chunked"}, "choose one, or leave fused_linear_cross_entropy out of liger_kernels"),
    "kernels without Liger": ({"liger_kernels": ["rope"]}, "liger_kernels says which, but liger is off"),
}  # fmt: skip
LONGEST = 170  # characters of one problem


@pytest.mark.parametrize(("change", "said"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradictions_are_refused_in_one_short_sentence(change, said):
    with pytest.raises(planner.CaseError) as refusal:
        planner.parse_training_case({**GOOD, **change})
    assert said in str(refusal.value)
    assert all(len(problem) <= LONGEST for problem in refusal.value.problems)


def test_all_contradictions_are_named_at_once():
    change = {"checkpointing": {"kind": "reentrant"}, "liger_kernels": ["rope"], "offload_param": "cpu"}
    with pytest.raises(planner.CaseError) as refusal:
        planner.parse_training_case({**GOOD, **change})
    assert len(refusal.value.problems) == 3


def test_a_chunked_loss_goes_with_liger_kernels_that_leave_the_loss_alone():
    case = {**GOOD, "liger": True, "liger_kernels": ["rms_norm"], "loss": "chunked"}
    assert planner.parse_training_case(case).loss == "chunked"


@pytest.mark.parametrize(
    ("config", "hidden"),
    [(GOOD["hf_config"], 64), ({"model_type": "gpt2", "n_embd": 96, "n_layer": 1}, 96), ({"model_type": "gpt2"}, 768)],
    ids=["hidden_size", "n_embd", "default"],
)  # fmt: skip
def test_auto_buckets_are_those_of_transformers(config, hidden):
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    case = {**GOOD, "hf_config": config, "zero_stage": 3, **zero(**dict.fromkeys(names, "auto"))}
    settings = planner.parse_training_case(case).zero
    expected = (hidden * hidden, int(0.9 * hidden * hidden), 10 * hidden)
    assert tuple(getattr(settings, name) for name in names) == expected


def test_auto_does_not_add_to_what_is_wrong_with_the_model():
    with pytest.raises(planner.CaseError) as refusal:
        planner.parse_training_case(
            {**GOOD, "hf_config": {"model_type": "lama"}, **zero(reduce_bucket_size="auto")}
        )
    assert len(refusal.value.problems) == 1


def test_what_deepspeed_does_without_a_refused_key_may_be_said():
    off = zero(zero_quantized_weights=False, zero_hpz_partition_size=1, mics_shard_size=-1)
    assert planner.parse_training_case({**GOOD, **off}) == planner.parse_training_case(GOOD)


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


@pytest.mark.parametrize(
    "given",
    [
        {"method": "full", "lora": {}},
        {"method": "full", "quantization": {}},
        {"method": "freeze", "lora": {}},
        {"method": "lora", "lora": {}, "quantization": {}},
    ],
)
def test_an_empty_section_is_there_too(given):
    with pytest.raises(planner.CaseError, match="section"):
        planner.parse_training_case({"hf_config": planner.model_config("gpt2"), **given})


def test_layers_have_a_bound():
    with pytest.raises(planner.CaseError, match="go up to 1000"):
        planner.parse_training_case(
            {"hf_config": {**planner.model_config("gpt2"), "n_layer": 20_000}, "method": "full"}
        )


def test_a_file_without_cases_is_said(tmp_path, capsys):
    from planner.__main__ import main

    (tmp_path / "none.jsonl").write_text("\n")
    assert main(["predict", str(tmp_path / "none.jsonl")]) == 2
    assert "holds no cases" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"deepspeed": False}, "deepspeed must be a mapping"),
        ({"deepspeed": {"zero_optimization": 0}}, "zero_optimization must be a mapping"),
        ({"deepspeed": {"zero_optimization": {"offload_param": "cpu"}}}, "offload_param must be a mapping"),
        ({"seq_len": 4096}, "has learned 1024 positions"),
    ],
)
def test_what_would_have_had_no_effect_is_refused(changes, said):
    with pytest.raises(planner.CaseError, match=said):
        planner.parse_training_case({"hf_config": planner.model_config("gpt2"), "method": "full", **changes})
