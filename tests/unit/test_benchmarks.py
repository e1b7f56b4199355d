"""The benchmarks that judge the planner: rivals within their scope, public cases translated or refused."""

import json
from pathlib import Path

import pandas as pd
import pytest

import planner
from benchmarks import accuracy, field_cases
from benchmarks.field import engines as shards
from benchmarks.field import parts, translate
from benchmarks.rivals import compare, engines, packages, rows, rules, run
from planner.architecture.families import architecture_of
from planner.units import GIB

ROOT = Path(__file__).parents[2]
LLAMA = planner.model_config("llama3_2_1b")


def row(**case):
    return rows.Row("x1", "a model", {"hf_config": LLAMA, **case})


LORA_QV = {"method": "lora", "lora": {"r": 8, "target_modules": ["q_proj", "v_proj"]}}


# Rivals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predict", "case", "reason"),
    [
        (rules.eighteen_bytes, LORA_QV, "not a full fine tune"),
        (rules.eighteen_bytes, {"world_size": 2, "zero_stage": 2}, "share only a part"),
        (rules.llama_factory_table, {"world_size": 2}, "several GPUs"),
        (engines.deepspeed_zero2, {"zero_stage": 3}, "not stage 2"),
        (engines.deepspeed_zero3, {"zero_stage": 3, **LORA_QV}, "every parameter as trained"),
        (engines.accelerate_memory, {"micro_batch": 2}, "batch of one"),
        (packages.fitcheck_tensors, {"world_size": 2}, "several GPUs"),
        (packages.vramcalc_total, LORA_QV, "only on q k v o"),
        (packages.vramcalc_total, {}, "master copy"),
        (packages.canifinetune_reserved, {"liger": True}, "Liger"),
        (packages.ftuneai_total, {"offload_optimizer": "cpu"}, "offload"),
    ],
)
def test_a_rival_outside_its_scope_is_not_asked(predict, case, reason):
    """None of the packages is installed here, so being asked would fail otherwise."""
    with pytest.raises(rows.OutOfScope, match=reason):
        predict(row(**case))


@pytest.mark.parametrize(
    ("case", "bytes_each"),
    [
        ({}, 18),
        (LORA_QV, 2),
        ({"method": "qlora", "lora": {}, "quantization": {"bits": 4}}, 0.5),
        ({"method": "qlora", "lora": {}, "quantization": {"bits": 8}}, 1),
    ],
)
def test_llama_factory_table_reads_bytes_per_parameter(monkeypatch, case, bytes_each):
    monkeypatch.setattr(rules, "parameters", lambda _: GIB)
    assert rules.llama_factory_table(row(**case)) == bytes_each


def test_eighteen_bytes_are_shared_at_stage_3_only(monkeypatch):
    monkeypatch.setattr(rules, "parameters", lambda _: GIB)
    assert rules.eighteen_bytes(row(world_size=4, zero_stage=3)) == 4.5
    assert rules.eighteen_bytes(row(world_size=4, zero_stage=0)) == 18


def test_a_rival_that_fails_is_recorded_not_scored():
    def broken(_):
        raise KeyError("no such model")

    line = run.answer(rows.Rival("r", "", "allocated", broken, "1"), row())
    assert line["failed"] == "KeyError: 'no such model'"
    assert "predicted_gib" not in line


def test_only_rows_that_survived_are_asked_for():
    ids = [r.id for r in rows.survivors()]
    assert len(ids) == len(set(ids)) >= 115


FRAME = pd.DataFrame(
    {
        "id": ["a", "b", "c"],
        "setting": ["one", "one", "two"],
        "method": ["full", "full", "lora"],
        "measured_gib": [10.0, 10.0, 20.0],
        "measured_reserved_gib": [None, None, 40.0],
        "measured_process_gib": [None, None, 50.0],
        "forecast_peak_allocated_gib": [11.0, 11.0, 20.0],
        "forecast_peak_reserved_gib": [12.0, 12.0, 40.0],
        "forecast_device_used_gib": [13.0, 13.0, 45.0],
    }
)


def answers(metric, **more):
    lines = [
        {"id": i, "rival": "r", "version": "1", "metric": metric, "predicted_gib": 30.0, **more}
        for i in ("a", "b", "c")
    ]
    return pd.DataFrame(lines)


def test_a_setting_measured_twice_counts_once():
    table = compare.against_rivals(FRAME, answers("allocated"))
    assert table["settings"].tolist() == [2]
    assert table["theirs worst"].tolist() == [200.0]
    assert table["ours mean"].tolist() == [5.0]


@pytest.mark.parametrize(("metric", "theirs", "ours"), [("reserved", -25.0, 0.0), ("process", -40.0, -10.0)])
def test_each_rival_is_judged_by_its_own_metric(metric, theirs, ours):
    table = compare.against_rivals(FRAME, answers(metric), "method")
    assert table["settings"].tolist() == [1], "rows under a limit say nothing about what would be reserved"
    assert table["theirs worst"].tolist() == [theirs]
    assert table["ours worst"].tolist() == [ours]


def test_what_is_out_of_scope_is_counted():
    some = answers("allocated", failed=None)
    some.loc[2, ["predicted_gib", "failed"]] = [None, "KeyError"]
    table = compare.out_of_scope(FRAME, some)
    assert table.loc["r"].to_dict() == {"answered": 1, "failed": 1}


def test_recorded_answers_belong_to_measured_rows():
    known = {r.id for r in rows.survivors()}
    files = sorted((ROOT / "benchmarks/results").glob("rivals-*.jsonl"))
    lines = [json.loads(line) for line in files[-1].read_text().splitlines()]
    assert {line["rival"] for line in lines} == {rival.name for rival in run.RIVALS}
    for line in lines:
        assert line["id"] in known
        assert len({"predicted_gib", "out_of_scope", "failed"} & set(line)) == 1
        assert line["metric"] in compare.TRUTH


def test_accuracy_puts_every_figure_beside_its_measurement():
    measured = [r for r in accuracy.measured_rows() if r["id"] == "v030"]
    frame = accuracy.table(measured)
    assert abs(frame["allocated"][0]) < 0.01
    assert frame["forecast_device_used_gib"][0] > frame["forecast_peak_reserved_gib"][0]
    assert accuracy.summary(frame, "stage")["rows"].tolist() == [1]


# Public cases -----------------------------------------------------------------------------------------

LITGPT = {
    "id": "litgpt-x", "kind": "train", "group": "litgpt", "confidence": "high", "outcome": "measured",
    "model": "meta-llama/Llama-3.2-1B", "method": "lora", "lora_rank": 32, "lora_targets": "q,v",
    "precision": "bf16-true", "optimizer": "AdamW (torch)", "zero_stage": "none", "offload_optimizer": "none",
    "offload_param": "none", "gpus": 1, "gpu_name": "A10G", "micro_batch": 1, "seq_len": 64,
    "gradient_checkpointing": False, "attention": "sdpa", "measured_gib": 4.2, "assumptions": "",
    "measured_metric": "torch max_memory_allocated /1e9",
}  # fmt: skip
FSDP = {
    "zero_stage": "fsdp", "gpus": 4, "method": "full", "precision": "bf16 mixed (fp32 weights)", "group": "x", "id": "x"
}  # fmt: skip


@pytest.fixture
def plain_engine(monkeypatch):
    monkeypatch.setattr(shards, "KEYS", (*shards.KEYS, "engine"))


def test_a_plain_loop_is_translated(plain_engine):
    translation = translate.translate(LITGPT)
    (case,) = translation.cases
    assert case["engine"] == "plain"
    assert case["optimizer"] == "torch_adamw"
    assert case["hf_config"]["tie_word_embeddings"] is False, "LitGPT keeps the head apart"
    assert case["lora"] == {
        "r": 32, "target_modules": ["qkv_proj"], "dropout": 0.05, "adapter_dtype": "bf16"
    }  # fmt: skip
    assert (case["attention_code"], case["loss"]) == ("litgpt", "litgpt_chunked")
    assert any("LitGPT" in note for note in translation.notes)


def test_litgpt_has_habits_of_its_own(plain_engine):
    phi = translate.translate(LITGPT | {"model": "microsoft/phi-2", "lora_targets": "q,k,v,o,mlp,head"})
    assert phi.cases[0]["hf_config"]["hidden_act"] == "gelu"
    assert parts.shape({"model": "microsoft/phi-2"})["hidden_act"] == "gelu_new", (
        "the table itself is left alone"
    )
    assert any("GELU" in note for note in phi.notes)


@pytest.mark.parametrize(
    ("change", "packed"),
    [({}, True), ({"versions": "transformers 5.17.0"}, False), ({"attention_mask": "given"}, False)],
)
def test_old_transformers_builds_a_mask_where_none_is_given(plain_engine, change, packed):
    own = {
        "group": "x",
        "id": "x",
        "versions": "torch 2.14.1, transformers 4.57.6",
        "attention_mask": "none given",
    }
    assert translate.translate(LITGPT | own | change).cases[0].get("packed", False) is packed


def test_a_plain_loop_waits_for_its_key(monkeypatch):
    monkeypatch.setattr(shards, "KEYS", tuple(k for k in shards.KEYS if k != "engine"))
    line = field_cases.judged(LITGPT)
    assert (line["state"], line["reason"]) == ("waiting", "case key 'engine': 'plain'")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "nobody/nothing"}, "no shape for model 'nobody/nothing'"),
        ({"method": "galore"}, "method 'galore'"),
        ({"lora_targets": ""}, "which modules are adapted"),
        ({"lora_rank": None}, "rank is not stated"),
        ({"seq_len": None}, "length is not stated"),
        ({"micro_batch": None}, "batch is not stated"),
        ({"gpus": None}, "number of GPUs is not stated"),
        ({"gpus": 2, "zero_stage": "ddp"}, "DDP"),
        ({"precision": "fp16 mixed"}, "autocast"),
        ({"optimizer": "AdamW fused into backward"}, "fused into backward"),
        ({"optimizer": "Sophia"}, "'Sophia' is not known"),
        (FSDP | {"offload_param": "cpu"}, "FSDP with CPU offload"),
        (FSDP | {"method": "qlora"}, "FSDP over a 4-bit base"),
        (
            {"zero_stage": 3, "method": "qlora", "offload_param": "cpu", "group": "x", "id": "x"},
            "the planner refuses: qlora with offload_param",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_with_the_reason(plain_engine, change, reason):
    line = field_cases.judged(LITGPT | change)
    assert line["state"] == "refused"
    assert reason in line["reason"]


@pytest.mark.parametrize(("precision", "wide"), [("bf16-true", False), ("bf16 mixed (fp32 weights)", True)])
def test_fsdp_stands_in_as_fsdp2_and_says_so(precision, wide):
    translation = translate.translate(LITGPT | FSDP | {"precision": precision})
    case = planner.parse_training_case(translation.cases[0])
    assert case.engine == "fsdp2"
    assert case.fsdp.fp32_params is wide
    assert not case.fsdp.sync_each_batch
    assert any("stands in as FSDP2" in note for note in translation.notes)


def test_litgpts_qlora_rows_have_the_bitsandbytes_that_it_pinned():
    translation = translate.translate(LITGPT | {"method": "qlora", "precision": "nf4 base, bf16-true"})
    base = planner.parse_training_case(translation.cases[0]).quantization
    assert base.keeps_inputs
    assert base.head
    assert base.unpacked_dtype == "fp16"
    assert any("0.42.0" in note for note in translation.notes)


def test_a_stated_range_of_lengths_is_forecast_at_both_ends():
    said = {"seq_len": None, "assumptions": "sequence length must be assumed (512-1304)"}
    found, notes = parts.lengths(LITGPT | said)
    assert found == (512, 1304)
    assert notes


def test_fused_projections_take_adapters_whole_or_not_at_all():
    assert parts.targets({"lora_targets": "q,k,v,o,mlp,head"}, "phi3") == (
        ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"],
        ["the adapter on the output head is left out"],
    )
    with pytest.raises(parts.NotTranslated, match="fused qkv"):
        parts.targets({"lora_targets": "q,v"}, "phi3")
    names, notes = parts.targets({"lora_targets": "q,v"}, "falcon", code="litgpt")
    assert names == ["query_key_value"], "LitGPT pads such an adapter to the whole projection"
    assert notes


@pytest.mark.parametrize(
    ("forecast", "measured", "expected"),
    [
        ((11.0, 11.0), (10.0, 10.0), 0.1),
        ((9.0, 9.0), (10.0, 12.0), -0.1),
        ((10.5, 20.0), (10.0, 12.0), 0.0),
        ((12.0, 20.0), (8.0, 10.0), 0.2),
    ],
)
def test_gap_is_zero_where_ranges_meet(forecast, measured, expected):
    assert field_cases.gap(forecast, measured) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("said", "metric"),
    [
        ("torch max_memory_allocated /1e9", "allocated"),
        ("torch peak reserved", "reserved"),
        ("nvidia-smi (assumed), per GPU", "process"),
        ("unknown, per GPU", "between"),
    ],
)
def test_the_metric_is_the_stated_one(said, metric):
    assert field_cases.metric_of({"measured_metric": said}) == metric


def test_a_measured_record_is_compared():
    line = field_cases.judged(LITGPT | FSDP | {"measured_gib": 3.0, "measured_gib_range": [3.0, 4.0]})
    assert line["state"] == "compared"
    assert line["error"] == pytest.approx(field_cases.gap(tuple(line["forecast_gib"]), (3.0, 4.0)), abs=1e-3)


@pytest.mark.parametrize(("host_gb", "said"), [(2000, "fits"), (8, "oom")])
def test_the_host_can_refuse_what_the_gpu_holds(host_gb, said):
    offloaded = {
        "zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu", "method": "full", "precision": "bf16",
        "group": "x", "id": "x", "outcome": "fits", "host_ram_gb": host_gb, "host_outcome": "fits",
    }  # fmt: skip
    line = field_cases.judged(LITGPT | offloaded)
    assert (line["state"], line["said"], line["agrees"]) == ("judged", said, said == "fits")


def test_a_verdict_needs_a_known_gpu():
    line = field_cases.judged(LITGPT | FSDP | {"outcome": "oom", "gpu_name": "Abacus"})
    assert line["reason"] == "GPU 'Abacus' is not in the table"


def test_every_name_leads_somewhere():
    for model in parts.names()["models"]:
        config = parts.shape({"model": model})
        try:
            architecture_of(config)
        except planner.CaseError as error:
            assert "is not known to the formula tier" in str(error), model
    for known in parts.names()["gpus"].values():
        assert (known.get("row") or known["like"]) in planner.gpu_names()


def test_the_report_prints_every_state(capsys):
    lines = [
        field_cases.judged(LITGPT | FSDP | {"measured_gib": 3.0}),
        field_cases.judged(LITGPT | FSDP | {"outcome": "oom"}),
        field_cases.judged(LITGPT | {"method": "galore"}),
    ]
    field_cases.report(lines)
    printed = capsys.readouterr().out
    assert "1 compared, 1 judged, 1 refused" in printed
    assert "High-confidence measured rows: 1 compared" in printed
    assert "method 'galore' has no counterpart" in printed
