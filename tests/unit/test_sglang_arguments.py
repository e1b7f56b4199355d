"""What SGLang is started with: our names, its releases' names, values, adapters, and shapes without files."""

from __future__ import annotations

import dataclasses
import json

import pytest
from sglang_jobs import SETTLED, make_job, make_model

from llmsys_exp.config.schema import Weights
from llmsys_exp.errors import UserError
from llmsys_exp.workers.engines.model_names import same_model
from llmsys_exp.workers.engines.sglang_arguments import (
    adapter_of,
    check_adapter,
    engine_arguments,
    environment,
    python_of,
    source_of_shape,
    warm_up,
)
from llmsys_exp.workers.engines.sglang_host import Refused, answer, described, release_arguments


def test_an_engine_gets_the_plan_and_what_must_not_be_left_open(tmp_path):
    job = make_job(tmp_path)
    arguments = engine_arguments(job, job.model_source)
    assert {name: arguments[name] for name in SETTLED} == SETTLED
    assert arguments["random_seed"] == job.config.seed  # SGLang draws one otherwise
    assert (arguments["dtype"], arguments["load_format"]) == ("bfloat16", None)
    assert "json_model_override_args" not in arguments and "attention_backend" not in arguments
    assert warm_up(job, arguments) == (16, 1, 1)  # a context of 64 tokens has no room for more
    assert environment(job, arguments) == {}


def test_on_a_cpu_sglang_takes_its_torch_paths_and_a_core_for_each_replica(tmp_path, monkeypatch):
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    job = make_job(tmp_path, device="cpu", dp_size=2)
    arguments = engine_arguments(job, job.model_source)
    assert (arguments["device"], arguments["attention_backend"]) == ("cpu", "torch_native")
    assert environment(job, arguments) == {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0,1|2,3",
    }


def test_random_weights_are_sglangs_dummies_and_a_shape_alone_becomes_a_folder(tmp_path):
    job = make_job(tmp_path)
    job.config.model.weights = Weights.random
    assert engine_arguments(job, job.model_source)["load_format"] == "dummy"
    assert engine_arguments(job, str(make_model(tmp_path / "merged")))["load_format"] is None
    job.config.model.entry = "qwen2_5_7b"
    source_of_shape(job, tmp_path)
    shape = json.loads((tmp_path / "config.json").read_text())
    assert shape["architectures"] == ["Qwen2ForCausalLM"] and shape["hidden_size"] == 3584


def test_dual_chunk_attention_is_switched_off_and_said(tmp_path, capsys):
    job = make_job(tmp_path)
    make_model(tmp_path / "model", dual_chunk_attention_config={"chunk_size": 4})
    arguments = engine_arguments(job, job.model_source)
    assert json.loads(arguments["json_model_override_args"]) == {"dual_chunk_attention_config": None}
    assert "dual chunk attention is switched off" in capsys.readouterr().out


def test_a_setting_that_is_still_auto_is_refused(tmp_path):
    job = make_job(tmp_path, mem_fraction_static="auto")
    with pytest.raises(UserError, match=r"inference\.sglang\.mem_fraction_static is still auto"):
        engine_arguments(job, job.model_source)


def test_an_adapter_is_served_over_its_own_base_alone(tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    file = adapter / "adapter_config.json"
    job = make_job(tmp_path, adapter=adapter)
    assert adapter_of(job) == adapter
    with pytest.raises(UserError, match="There is no adapter here"):
        engine_arguments(job, job.model_source)
    file.write_text(json.dumps({"base_model_name_or_path": "elsewhere/Small-Model"}))
    assert engine_arguments(job, job.model_source)["lora_paths"] == [f"adapter={adapter}"]
    file.write_text(json.dumps({"base_model_name_or_path": "owner/large-model"}))
    with pytest.raises(UserError, match="belongs to owner/large-model, and the base is owner/small-model"):
        engine_arguments(job, job.model_source)


@pytest.mark.parametrize(
    "more", [{"use_rslora": True}, {"rank_pattern": {"q": 2}}, {"bias": "all"}, {"peft_type": "VERA"}]
)
def test_an_adapter_that_sglang_would_serve_as_another_one_is_refused(tmp_path, more):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/a", **more}))
    with pytest.raises(UserError, match=r"cannot serve this adapter.*Merge the adapter first"):
        check_adapter(tmp_path, base="/models/a", base_name="owner/a")


def test_an_adapter_on_a_cpu_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match="serves adapters on a GPU only"):
        engine_arguments(make_job(tmp_path, device="cpu", adapter=tmp_path), "anything")


def test_the_interpreter_is_the_parents_choice_then_the_setting_then_ours(tmp_path):
    job = make_job(tmp_path)
    job.config.inference.sglang.python = "/setting/python"
    assert python_of(dataclasses.replace(job, serving={"python": "/parent/python"})) == "/parent/python"
    assert python_of(dataclasses.replace(job, serving=None)) == "/setting/python"


@dataclasses.dataclass
class Args:
    """Fields of two releases at once."""

    cuda_graph_max_bs_decode: int | None = None
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    disable_radix_cache: bool = False
    mem_fraction_static: float | None = None
    model_path: str = ""

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--schedule-policy", choices=["fcfs", "lpm"])


def test_names_are_those_of_the_installed_release_and_open_ones_stay_open():
    ours = {"cuda_graph_max_bs": 32, "schedule_policy": "lpm", "mem_fraction_static": None}
    assert release_arguments(Args, ours, {"disable_radix_cache": True}) == {
        "cuda_graph_max_bs_decode": 32,
        "schedule_policy": "lpm",
        "disable_radix_cache": True,
    }


@pytest.mark.parametrize(
    ("ours", "further", "said"),
    [
        ({}, {"schedule_conservativness": 0.3}, "Did you mean schedule_conservativeness"),
        ({"model_path": "m"}, {"model_path": "n"}, "is set by llmsys"),
        ({"tp_size": 2}, {}, "no argument tp_size"),
        ({"schedule_policy": "lmp"}, {}, "Did you mean lpm"),
        ({}, {"disable_radix_cache": "yes"}, "on or off"),
        ({}, {"schedule_conservativeness": "high"}, "is a number"),
        ({"mem_fraction_static": 1.5}, {}, "mem_fraction_static is 1.5"),
    ],
)
def test_what_the_constructor_would_swallow_is_refused(ours, further, said):
    with pytest.raises(Refused) as refused:
        release_arguments(Args, ours, further)
    assert said in " ".join(refused.value.told.values())


def test_a_result_is_read_and_its_first_token_is_when_the_prompt_was_done():
    meta = {"finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 3, "completion_tokens": 2,
            "cached_tokens": 1, "num_retractions": 4, "first_token_latency": 9.0}  # fmt: skip
    told = answer({"output_ids": [7, 2], "meta_info": meta})
    assert (told["ids"], told["matched"], told["retractions"], told["first_token_s"]) == ([7, 2], 2, 4, 9.0)
    told = answer({"meta_info": {**meta, "prefill_finished_time": 12.5, "request_received_ts": 12.0}})
    assert (told["ids"], told["first_token_s"]) == ([], 0.5)


def test_of_several_replicas_the_smallest_pool_counts():
    states = [
        {"memory_usage": {"weight": 1.0, "token_capacity": tokens, "graph": {"decode": 0.5, "prefill": 0.25}}}
        for tokens in (900, 800)
    ]
    told = described({"context_length": 64, "internal_states": states, "dp_size": 2, "unknown": 1}, "1.2")
    assert (told["kv_tokens"], told["graphs_gib"], told["weights_gib"]) == (800, 0.75, 1.0)
    assert told["settings"]["dp_size"] == 2 and "unknown" not in told["settings"]


def test_names_of_one_model(tmp_path):
    one, other = make_model(tmp_path / "a" / "merged"), make_model(tmp_path / "b" / "merged")
    assert same_model("/far/Qwen2.5-7B", "Qwen/qwen2.5-7b")
    assert same_model("/hub/models--Qwen--Qwen2.5-7B/snapshots/abc", "Qwen/Qwen2.5-7B")
    assert same_model(str(one), str(one / ".." / "merged"))
    assert not same_model(str(one), str(other))
    assert not same_model("/far/run1/merged", "/far/run2/merged")
