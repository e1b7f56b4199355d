"""From a configuration to an engine with nothing left open: what is chosen, why, and what is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import planner
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import AUTO, Config, Dtype, GatePolicy
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.serving import ServingPlan, serving_plan
from llmsys_exp.plan.serving_work import measure_work
from planner.tables import DATA

GIB = 1024**3


@cache
def _base() -> Config:
    return compose_config(["steps=[infer]", "model=qwen2_5_7b", "hardware=h200", "inference=sglang"])


def config(**changes: Any) -> Config:
    """The base with settings changed; `a__b` means `a.b`, and a bare name one of `inference.sglang`."""
    made = deepcopy(_base())
    for key, value in changes.items():
        *path, last = key.split("__")
        section: Any = made.inference.sglang if not path else made
        for name in path:
            section = getattr(section, name)
        setattr(section, last, value)
    return made


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """800 prompts of 300 bytes, and one of 1,500."""
    file = tmp_path / "prompts.json"
    texts = ["x" * 300] * 800 + ["y" * 1500]
    file.write_text(json.dumps([{"instruction": text, "output": "z" * 9000} for text in texts]))
    return file


def plan(prompts: Path | None = None, **changes: Any) -> ServingPlan:
    return serving_plan(config(**changes), prompts_file=prompts, engine_version="0.5.17")


def chosen(planned: ServingPlan) -> dict[str, Any]:
    return {choice.key.rsplit(".", 1)[1]: choice.value for choice in planned.choices}


def test_nothing_is_left_open_and_every_choice_has_a_reason(prompts: Path) -> None:
    planned = plan(prompts, inference__sampling__max_new_tokens=512)
    settings = planned.config.inference.sglang
    left = [key for key, value in vars(settings).items() if value == AUTO and key != "kv_cache_dtype"]
    assert left == []  # SGLang's own word for the model's type
    assert all(choice.reason for choice in planned.choices)
    assert (planned.label, planned.config.inference.batch_size) == ("fits", "all")
    assert chosen(planned)["context_length"] == 16_384
    assert chosen(planned)["max_running_requests"] == 801
    assert chosen(planned)["chunked_prefill_size"] == 8192
    assert (chosen(planned)["tp_size"], chosen(planned)["dp_size"]) == (1, 1)


def test_the_context_holds_the_longest_prompt_and_its_answer(prompts: Path) -> None:
    """1500 bytes, 256 for the template and the answer, rounded up; at most what the model knows."""
    of = {new: chosen(plan(prompts, inference__sampling__max_new_tokens=new))["context_length"]
          for new in (15_000, 31_000, 120_000)}  # fmt: skip
    assert of == {15_000: 32_768, 31_000: 32_768, 120_000: 131_072}
    assert chosen(plan(prompts, model__entry="llama2_7b"))["context_length"] == 4096


def test_points_of_a_sweep_that_need_no_other_engine_share_one(prompts: Path) -> None:
    points = [{"inference__sampling__max_new_tokens": 256}, {"inference__sampling__max_new_tokens": 8192},
              {"inference__batch_size": 8}, {"inference__sampling__temperature": 0.7}]  # fmt: skip
    first, *others = [plan(prompts, **point).arguments for point in points]
    assert all(other == first for other in others)


def test_what_the_user_gave_stays(prompts: Path) -> None:
    given = {"mem_fraction_static": 0.7, "context_length": 9000, "max_running_requests": 100,
             "chunked_prefill_size": 4096, "cuda_graph_max_bs": 64, "kv_cache_dtype": "fp8_e5m2"}  # fmt: skip
    planned = plan(prompts, **given)
    assert {key: chosen(planned)[key] for key in given} == given
    assert all(choice.given for choice in planned.choices if choice.key.rsplit(".", 1)[1] in given)
    assert {key: planned.arguments[key] for key in given} == given
    assert planned.forecast is not None
    assert planned.forecast.kv_bytes_per_token == 57_344 // 2


def test_requests_are_of_all_replicas_and_sglang_gets_those_of_one(prompts: Path) -> None:
    planned = plan(prompts, hardware__gpus_per_node=4, max_running_requests=1001)
    assert (chosen(planned)["dp_size"], planned.arguments["max_running_requests"]) == (4, 251)
    open_ones = plan(prompts, hardware__gpus_per_node=4)
    assert (chosen(open_ones)["max_running_requests"], open_ones.arguments["max_running_requests"]) == (
        804,
        201,
    )


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "wanted"),
    [("llama2_70b", "h100", 4, (2, 2)), ("llama2_70b", "h100", 8, (2, 4)), ("qwen2_5_14b", "l4", 4, (2, 2)),
     ("qwen2_5_7b", "l4", 3, (1, 3))],
)  # fmt: skip
def test_a_replica_gets_the_fewest_gpus_that_hold_it(model: str, gpu: str, gpus: int, wanted: Any, prompts: Path) -> None:  # fmt: skip
    planned = plan(prompts, model__entry=model, hardware__gpu=gpu, hardware__gpus_per_node=gpus)
    assert planned.fits
    assert (chosen(planned)["tp_size"], chosen(planned)["dp_size"]) == wanted


def test_no_more_replicas_than_prompts(tmp_path: Path) -> None:
    file = tmp_path / "two.txt"
    file.write_text("one\n\ntwo\n")
    planned = plan(file, hardware__gpus_per_node=8)
    assert (chosen(planned)["dp_size"], chosen(planned)["max_running_requests"]) == (2, 2)
    assert any("6 of 8 GPUs stay idle" in note for note in planned.notes)


def test_the_chosen_fraction_leaves_its_room_and_the_margin(prompts: Path) -> None:
    planned, wider = plan(prompts), plan(prompts, gate__margin_gib=3.0)
    forecast = planned.forecast
    assert isinstance(forecast, planner.ServingForecast)
    room = 2 * (forecast.activations_bytes + forecast.logits_bytes) + (512 << 20)
    assert forecast.free_after_start_bytes >= room + 0.2 * GIB
    saved = chosen(planned)["mem_fraction_static"] - chosen(wider)["mem_fraction_static"]
    assert saved == pytest.approx(2.75 / 138.84, abs=0.0011)


def test_a_sampler_that_sorts_gets_room_for_it(prompts: Path) -> None:
    """7 GiB were seen at 805 requests of Qwen2.5-7B on an H200."""
    sorts, plain = plan(prompts, sampling_backend="pytorch"), plan(prompts)
    left = [one.forecast.free_after_start_bytes / GIB for one in (sorts, plain)]  # type: ignore[union-attr]
    assert left[0] > 7
    assert 5.5 < left[0] - left[1] < 6.2


def test_a_small_card_keeps_its_memory_for_the_cache(prompts: Path) -> None:
    planned = plan(prompts, hardware__gpu="l4", inference__sampling__max_new_tokens=1000)
    assert planned.fits
    assert 64 <= chosen(planned)["max_running_requests"] <= 256
    own = planner.predict({"kind": "serve", "hf_config": planner.model_config("qwen2_5_7b"), "gpu": "l4",
                           "context_length": 4096})  # fmt: skip
    assert planned.forecast.kv_tokens > 2 * own.kv_tokens  # type: ignore[union-attr]


def test_the_forecast_meets_a_measured_start(prompts: Path) -> None:
    """The same row as `test_serving.test_a_measured_start`, by way of a configuration and the card's own row."""
    row = json.loads((DATA / "measured/h200-serving.jsonl").read_text().splitlines()[0])
    case, measured = row["case"], row["measured"]
    names = ("mem_fraction_static", "context_length", "max_running_requests", "cuda_graph_max_bs",
             "attention_backend")  # fmt: skip
    planned = plan(
        prompts, **{name: case[name] for name in names}, arguments={"disable_prefill_cuda_graph": True}
    )
    assert isinstance(planned.forecast, planner.ServingForecast)
    assert planned.forecast.kv_tokens == pytest.approx(measured["kv_tokens"], rel=0.01)
    assert planned.forecast.free_after_start_bytes / GIB == pytest.approx(
        measured["free_after_start_gib"], rel=0.02
    )


def test_a_fraction_that_cannot_start_is_told_with_the_smallest_that_can(prompts: Path) -> None:
    low = plan(prompts, mem_fraction_static=0.05)
    assert (low.fits, low.forecast.starts) == (False, False)  # type: ignore[union-attr]
    assert "the smallest that starts is 0.104" in str(low.cause)
    assert plan(prompts, mem_fraction_static=0.104).forecast.starts  # type: ignore[union-attr]
    assert not plan(prompts, mem_fraction_static=0.103).forecast.starts  # type: ignore[union-attr]
    high = plan(prompts, mem_fraction_static=0.995)
    assert not high.fits
    assert str(high.fix).startswith("inference.sglang.mem_fraction_static=0.9")
    named = float(str(high.fix).rpartition("=")[2])
    assert plan(prompts, mem_fraction_static=named).label == "fits"


def test_too_large_a_model_is_told_with_the_gpus_that_hold_it(prompts: Path) -> None:
    planned = plan(prompts, model__entry="llama2_70b", hardware__gpu="h100")
    assert not planned.fits
    assert planned.fix == "inference.sglang.tp_size=2 hardware.gpus_per_node=2"
    assert plan(prompts, model__entry="llama2_70b", hardware__gpu="h100", hardware__gpus_per_node=2).fits


def test_an_8_bit_cache_is_offered_in_the_type_that_the_card_takes(prompts: Path) -> None:
    """24 GB hold Llama 3.1 8B and some 40,000 tokens of a 16-bit cache."""
    wanted = {
        "model__entry": "llama3_1_8b",
        "context_length": 60_000,
        "inference__sampling__max_new_tokens": 55_000,
    }
    ada = plan(prompts, hardware__gpu="l4", **wanted)
    ampere = plan(prompts, hardware__gpu="a10g", **wanted)
    assert (ada.fits, ampere.fits) == (False, False)
    assert str(ada.fix).startswith("inference.sglang.kv_cache_dtype=fp8_e4m3")
    assert str(ampere.fix).startswith("inference.sglang.kv_cache_dtype=fp8_e5m2")


REFUSED = {
    "volta": ({"hardware__gpu": "v100-16gb"}, "SGLang does not run on Tesla V100"),
    "turing": ({"hardware__gpu": "t4"}, "they begin at 8.0"),
    "gpus": ({"tp_size": 2, "dp_size": 2, "hardware__gpus_per_node": 2}, "tp_size 2 x dp_size 2 needs 4 GPUs"),
    "tp": ({"tp_size": 2}, "hardware.gpus_per_node is 1"),
    "heads": ({"tp_size": 3, "hardware__gpus_per_node": 3}, "not a multiple of inference.sglang.tp_size 3"),
    "context": ({"context_length": 200_000}, "above the 131,072 positions"),
    "answers": ({"inference__sampling__max_new_tokens": 140_000}, "leave no room for a prompt"),
    "context of answers": ({"context_length": 100}, "leave no room for a prompt"),
    "unknown quantisation": ({"quantization": "fp9"}, "Did you mean fp8?"),
    "chunk": ({"chunked_prefill_size": 0}, "-1 turns chunks off"),
    "old card, int8": ({"quantization": "w8a8_fp8", "hardware__gpu": "a100-80gb"}, "asks for compute capability 8.9"),
    "template": ({"inference__template": "chatm"}, "Did you mean chatml?"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_start_is_refused_before_anything_loads(changes: Any, said: str, prompts: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        plan(prompts, **changes)
    assert said in str(refused.value)


def test_own_kernels_on_an_old_card_are_tried_with_the_gate_off(prompts: Path) -> None:
    planned = plan(prompts, hardware__gpu="t4", gate__policy=GatePolicy.off, model__entry="qwen2_5_0_5b")
    assert planned.arguments["tp_size"] == 1


def test_a_prompt_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"instruction": "word " * 240_000}) + "\n")
    with pytest.raises(ConfigError, match=r"longest prompt \(1,200,000 bytes, 150,000 tokens at least\)"):
        plan(file)
    with pytest.raises(ConfigError, match="is too long"):
        plan(file, inference__engine="transformers")


def test_transformers_gets_a_batch_that_fits(prompts: Path) -> None:
    roomy = plan(prompts, inference__engine="transformers")
    small = plan(prompts, inference__engine="transformers", hardware__gpu="l4")
    assert (roomy.config.inference.batch_size, roomy.label) == (64, "fits")
    assert 1 <= int(small.config.inference.batch_size) < 64
    assert small.label in ("fits", "tight")
    assert small.to_dict() is None
    refused = plan(prompts, inference__engine="transformers", hardware__gpu="l4", inference__batch_size=4000)
    assert (refused.fits, str(refused.fix).startswith("inference.batch_size=")) == (False, True)


def test_transformers_answers_with_models_that_the_planner_does_not_know(
    tmp_path: Path, prompts: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    planned = plan(prompts, inference__engine="transformers", model__entry=None, model__path=str(tmp_path))
    assert (planned.fits, planned.forecast, planned.config.inference.batch_size) == (True, None, 16)
    with pytest.raises(ConfigError, match="unheard_of"):
        plan(prompts, model__entry=None, model__path=str(tmp_path))


def test_a_server_that_runs_already_is_not_planned(prompts: Path) -> None:
    planned = plan(prompts, inference__engine="sglang_server", inference__server__url="http://127.0.0.1:3000")
    assert (planned.forecast, planned.to_dict(), planned.arguments) == (None, None, {})
    assert planned.config.inference.batch_size == "all"
    assert planned.fits
    ours = plan(prompts, inference__engine="sglang_server").to_dict()
    assert ours is not None
    assert ours["forecast"]["kv_tokens"] > 2_000_000


def test_on_the_cpu_no_way_out_is_named_that_is_none(prompts: Path) -> None:
    planned = plan(prompts, hardware__gpu="cpu", hardware__host_memory_gib=8.0, training__dtype=Dtype.bf16)
    assert (planned.label, planned.fix) == ("does not fit", None), planned.cause
    with pytest.raises(ConfigError, match="dp_size=2 on the CPU"):
        plan(
            prompts, hardware__gpu="cpu", hardware__host_memory_gib=64.0, hardware__gpus_per_node=2, dp_size=2
        )


def test_a_mean_guessed_from_bytes_is_no_reason_to_refuse(prompts: Path) -> None:
    # 300 bytes are 107 tokens with the template by our guess, and may be 70
    planned = plan(prompts, context_length=384, inference__sampling__max_new_tokens=192)
    assert planned.config.inference.sglang.context_length == 384
    planned = plan(prompts, context_length=288, inference__sampling__max_new_tokens=100)
    assert planned.fits, planned.cause


def test_on_the_cpu_memory_is_asked_for_as_it_is_needed(prompts: Path) -> None:
    planned = plan(prompts, hardware__gpu="cpu", hardware__host_memory_gib=24.0, model__entry="qwen2_5_0_5b")
    assert planned.fits
    assert planned.arguments["max_total_tokens"] >= planned.arguments["context_length"]
    assert planned.arguments["mem_fraction_static"] < 0.4
    assert planned.arguments["cuda_graph_max_bs"] == 1


def test_memory_that_others_hold_is_not_planned_with(prompts: Path) -> None:
    free = [
        plan(prompts, **changes).forecast.free_before_weights_bytes / GIB  # type: ignore[union-attr]
        for changes in ({}, {"hardware__in_use_gib": 20.0}, {"hardware__memory_gib": 100.0})
    ]
    assert free == pytest.approx([138.84, 118.84, 100 - 0.96], abs=0.01)


def test_work_is_counted_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"instruction": "a" * 400, "input": "b" * 400, "output": "c" * 999, "max_new_tokens": 700},
            {"messages": [{"role": "user", "content": "d" * 196}]}]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = measure_work(config(), file)
    assert (work.prompts, work.longest_bytes, work.new_tokens) == (2, 800, 700)
    assert work.mean_tokens == 500 // 4 + 32
    assert work.longest_tokens == 800 + 256
    bare = measure_work(config(inference__template="none", inference__limit=1), file)
    assert (bare.prompts, bare.mean_tokens, bare.longest_tokens) == (1, 200, 800)
    assumed = measure_work(config(), None)
    assert (assumed.prompts, assumed.assumed) == (256, True)


@pytest.mark.parametrize(("name", "content"), [("a.json", b"[]"), ("a.txt", b"\n\n"), ("a.jsonl", b"\xff\n")])
def test_files_without_prompts_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError) as refused:
        measure_work(config(), file)
    assert name in str(refused.value)


def test_what_job_json_holds_is_plain(prompts: Path) -> None:
    planned = serving_plan(config(), prompts_file=prompts, python="/env/bin/python", engine_version="0.5.17")
    content = planned.to_dict()
    assert content == json.loads(json.dumps(content))
    assert content is not None
    assert content["python"] == "/env/bin/python"
    assert content["arguments"]["mem_fraction_static"] == content["forecast"]["mem_fraction_static"]
    assert json.loads(json.dumps(planned.describe()))["verdict"]["label"] == "fits"


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://x:port", "http://[", "x:30000"])
def test_what_is_no_url_of_a_server_is_refused_before_anything_is_asked(prompts: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="no URL of a server"):
        plan(prompts, inference__engine="sglang_server", inference__server__url=url)


def test_a_server_that_the_engine_does_not_ask_is_noted(prompts: Path) -> None:
    url = "http://127.0.0.1:30000"
    assert (
        f"{url} is not asked: inference.engine=sglang answers here"
        in plan(prompts, inference__server__url=url).notes
    )
    asked = plan(prompts, inference__engine="sglang_server", inference__server__url=url)
    assert not [note for note in asked.notes if "not asked" in note]


@pytest.mark.parametrize("name", ["tp_size", "mem_fraction_static", "schedule_policy"])
def test_an_argument_that_has_a_setting_is_refused_with_it(prompts: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"Use inference\.sglang\.{name}"):
        plan(prompts, arguments={name: 1})


def test_a_text_file_is_measured_by_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "asked.txt"
    file.write_text("one\u2028still one\n\ntwo\n", encoding="utf-8")
    assert measure_work(config(), file).prompts == 2
    file.write_bytes(b"one\n\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        measure_work(config(), file)
