"""How SGLang divides a card, what runs on it, and what the planner advises."""

import json
from pathlib import Path

import pytest

import planner
from planner.serving.case import parse_serving_case
from planner.serving.defaults import request_slots
from planner.tables import DATA

GIB = 1024**3
MEASURED = Path(__file__).parents[2] / "benchmarks/results/h200-2026-11-30-serving-activation.jsonl"
CARDS = {"t4": (15360, 0.735, 0.735), "24 GB": (23034, 0.822, 0.684), "32 GB": (32510, 0.874, 0.776),
         "40 GB": (40442, 0.821, 0.821), "80 GB": (81559, 0.830, 0.830), "h200": (143771, 0.903, 0.903)}  # fmt: skip
LENGTHS = {"input_tokens": 1000, "output_tokens": 500}


def case(**changes):
    base = {"kind": "serve", "engine_version": "0.5.23", "hf_config": planner.model_config("qwen2_5_7b"),
            "gpu": {"total_mib": 81559}, "context_length": 16384}  # fmt: skip
    return planner.predict({**base, **changes})


@pytest.mark.parametrize(("mib", "early", "late"), CARDS.values(), ids=CARDS.keys())
def test_default_fraction_by_card_and_version(mib, early, late):
    """The 0.5.17 column was read from that release's own resolver, the other from its source."""
    found = [case(gpu={"total_mib": mib}, engine_version=v).mem_fraction_static for v in ("0.5.17", "0.5.23")]
    assert found == [early, late]


def test_a_prefill_pass_takes_what_was_measured():
    """8 prompts of 1,024 tokens in one pass: H200, SGLang 0.5.17, a few layers of each model."""
    for line in MEASURED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        seen = next(one for one in row["measured"] if one["requests"] == 8 and one["picks"] == "greedy")
        found = case(hf_config=row["config"], chunked_prefill_size=8192, context_length=4096)
        assert found.activations_bytes == pytest.approx(seen["model_bytes"], rel=0.006), row["model"]


@pytest.mark.parametrize(
    ("change", "reserve_mib"),
    [
        ({"gpu": {"total_mib": 40442}}, 512 + 1.5 * 4096 + 128 + 2 * 32 + 8 * 50),
        ({"gpu": {"total_mib": 40442}, "prefill_cuda_graph": False}, 512 + 1.5 * 4096 + 128 + 2 * 32),
        ({"gpu": {"total_mib": 40442}, "tp_size": 4}, 512 + 1.5 * 4096 + 512 + 2 * 160 + 8 * 50),
        ({"gpu": {"total_mib": 40442}, "chunked_prefill_size": -1}, 512 + 1.5 * 16384 + 128 + 2 * 32),
        ({"gpu": {"total_mib": 40442}, "max_running_requests": 4}, 512 + 1.5 * 4096 + 128 + 2 * 4 + 8 * 50),
        ({"gpu": {"total_mib": 81559}, "chunked_prefill_size": 2048}, 10 * 1024),
    ],
    ids=["40 GB", "no prefill graphs", "tp 4", "unchunked", "few requests", "floor above 60 GiB"],
)
def test_what_the_engine_reserves(change, reserve_mib):
    assert case(**change).engine_reserve_bytes == int(reserve_mib * 1024**2)


def test_tokens_follow_the_fraction():
    low, high = (case(gpu="h100", mem_fraction_static=f) for f in (0.5, 0.8))
    assert high.kv_tokens - low.kv_tokens == pytest.approx(0.3 * 78.14 * GIB / 57_344, rel=1e-4)
    assert high.kv_pool_bytes == high.kv_tokens * 57_344


def test_a_measured_start():
    """One start on an H200. The loader's constant comes from it; nothing else does."""
    row = json.loads((DATA / "measured/h200-serving.jsonl").read_text().splitlines()[0])
    forecast, measured = planner.predict(row["case"]), row["measured"]
    assert forecast.kv_tokens == pytest.approx(measured["kv_tokens"], rel=1e-3)
    assert forecast.kv_pool_bytes / GIB == pytest.approx(measured["kv_pool_gib"], rel=1e-3)
    assert forecast.graphs_bytes / GIB == pytest.approx(measured["decode_graphs_gib"], rel=0.1)
    assert forecast.free_after_start_bytes / GIB == pytest.approx(measured["free_after_start_gib"], rel=0.01)
    assert forecast.starts


def test_components_are_what_was_free():
    forecast = case()
    assert sum(forecast.components.values()) == forecast.free_before_weights_bytes
    assert forecast.components["unused"] > 0


def test_a_fraction_below_the_weights_does_not_start_and_the_smallest_that_does_is_named():
    refused = case(mem_fraction_static=0.1)
    least = refused.minimum_mem_fraction_static
    assert (refused.starts, refused.label) == (False, "does not fit")
    assert "leave no memory for the KV pool" in refused.cause
    assert case(mem_fraction_static=least).starts
    assert not case(mem_fraction_static=round(least - 0.001, 3)).starts


def test_a_million_tokens_of_context_cost_a_request_table_and_a_note():
    forecast = case(context_length=1_010_000, max_running_requests=2048)
    assert forecast.request_table_bytes / GIB == pytest.approx(7.71, abs=0.02)
    assert any("request table takes 7.7 GiB" in note for note in forecast.notes)


def test_weights_hold_the_rotary_table_of_the_longer_of_model_and_context():
    """Positions x 128 x 4 bytes: the model's own length counts where the context is shorter."""
    short, own, longer = (case(context_length=n).weights_bytes for n in (1024, 131_072, 262_144))
    assert short == own
    assert longer - own == 131_072 * 128 * 4


@pytest.mark.parametrize(
    ("wanted", "tokens", "slots"),
    [(None, 400_000, 2048), (None, 2_000, 1000), (64, 10_000, 64), (64, 100, 50), (None, 10**9, 4096)],
)
def test_request_slots(wanted, tokens, slots):
    parsed = parse_serving_case(
        {"kind": "serve", "hf_config": planner.model_config("qwen2_5_7b"), "gpu": "h200",
         "context_length": 131_072 if tokens < 10**9 else 16_384, "max_running_requests": wanted}
    )  # fmt: skip
    assert request_slots(parsed, tokens) == slots


def test_requests_that_fit_are_the_pool_divided_by_their_length():
    forecast = case(**LENGTHS)
    assert forecast.concurrent_requests == forecast.kv_tokens // 1500
    assert forecast.concurrent_requests_mean == forecast.kv_tokens // 1250
    assert forecast.limited_by == "KV pool"
    capped = case(**LENGTHS, max_running_requests=100)
    assert (capped.concurrent_requests, capped.limited_by) == (100, "max_running_requests")
    assert case(**LENGTHS, dp_size=2).concurrent_requests == 2 * forecast.concurrent_requests


def test_the_scheduler_reserves_at_most_4096_tokens_of_output():
    forecast = case(input_tokens=100, output_tokens=8192, gpu={"total_mib": 23034}, engine_version="0.5.17")
    assert forecast.admitted_requests == 1 + int((forecast.kv_tokens - 4196) // (100 + 0.7 * 4096))
    assert forecast.admitted_requests > forecast.concurrent_requests


def test_the_fraction_for_a_concurrency_is_the_smallest_that_gives_it():
    least = case(**LENGTHS, concurrency=300).concurrency_mem_fraction_static
    enough, fewer = (case(**LENGTHS, mem_fraction_static=f) for f in (least, round(least - 0.001, 3)))
    assert enough.concurrent_requests >= 300 > fewer.concurrent_requests


def test_a_good_fraction_leaves_running_requests_their_room():
    good = case(**LENGTHS, concurrency=300).good_mem_fraction_static
    at_it = case(**LENGTHS, concurrency=300, mem_fraction_static=good)
    assert (at_it.fits, at_it.label) == (True, "fits")
    assert at_it.free_after_start_bytes > 2 * (at_it.activations_bytes + at_it.logits_bytes)
    above = case(**LENGTHS, concurrency=300, mem_fraction_static=round(good + 0.004, 3))
    assert above.label == "tight"
    too_high = case(**LENGTHS, concurrency=300, mem_fraction_static=0.995)
    assert (too_high.label, too_high.fix) == ("does not fit", f"mem_fraction_static={good:g}")


FIXES = {
    "fraction": ({"gpu": "l4", "concurrency": 8}, "mem_fraction_static="),
    "fp8 cache": ({"hf_config": planner.model_config("llama3_1_8b"), "gpu": "l4", "context_length": 2048,
                   "concurrency": 32, "max_running_requests": 32, "chunked_prefill_size": 2048}, "kv_dtype=fp8"),
    "more GPUs": ({"hf_config": planner.model_config("qwen2_5_72b"), "gpu": "h100", "context_length": 8192,
                   "concurrency": 32}, "tp_size="),
    "within gpus": ({"hf_config": planner.model_config("qwen2_5_72b"), "gpu": "h100", "context_length": 8192,
                     "concurrency": 32, "gpus": 1}, "quantization=awq"),
    "fewer": ({"gpu": "l4", "concurrency": 2000, "gpus": 1}, "concurrency="),
    "a pool that is kept small": ({"gpu": "h100", "max_total_tokens": 600, "page_size": 64},
                                  "max_total_tokens=1536"),
    "old card": ({"gpu": "t4"}, "engine=transformers"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), FIXES.values(), ids=FIXES.keys())
def test_the_cheapest_change_is_named(change, said):
    forecast = case(**LENGTHS, **change)
    assert not forecast.fits
    assert forecast.cause
    assert said in forecast.fix


def test_the_named_change_makes_it_fit():
    wanted = {"hf_config": planner.model_config("qwen2_5_72b"), "gpu": "h100", "context_length": 8192,
              "concurrency": 32, **LENGTHS}  # fmt: skip
    change, fraction = case(**wanted).fix.removesuffix(")").split(" (with mem_fraction_static=")
    key, value = change.split("=")
    assert case(**wanted, **{key: int(value)}, mem_fraction_static=float(fraction)).fits


def test_a_change_on_top_of_others_names_each_key_once_as_it_is_in_the_end():
    small = {"name": "a6000", "total_mib": 10240, "free_before_weights_gib": 9.5}
    fix = case(hf_config=planner.model_config("llama3_1_70b"), gpu=small, tp_size=2, **LENGTHS).fix
    keys = [part.partition("=")[0].lstrip("(") for part in fix.split() if "=" in part]
    assert "tp_size=16" in fix.split() and len(keys) == len(set(keys)), fix


def test_quantising_while_loading_needs_room_for_the_plain_weights():
    online = case(hf_config=planner.model_config("qwen2_5_72b"), gpu="h100", quantization="fp8")
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert online.weights_bytes < 78 * GIB
    assert (online.starts, "while loading" in online.cause) == (False, True)
    assert case(hf_config=planner.model_config("qwen2_5_72b"), gpu="h200", quantization=stored).starts


def test_a_window_pool_too_small_for_one_request_does_not_start():
    config = {"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
              "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
              "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128}  # fmt: skip
    small = case(hf_config=config, gpu="h200", max_total_tokens=150)
    assert (small.starts, "holds no request" in small.cause) == (False, True)
    assert case(hf_config=config, gpu="h200", max_total_tokens=200).starts


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"context_length": 262_144}, "above the 131072 of the model"),
        ({"hf_config": planner.model_config("gemma3_1b")}, "the window saves no memory"),
        ({"tp_size": 28 // 7 * 7, "hf_config": {**planner.model_config("qwen2_5_7b"), "intermediate_size": 18816}},
         "they are replicated"),
        ({"gpu": {"total_mib": 23034}, "mem_fraction_static": 0.7}, "is below context_length"),
        ({"engine_version": "0.5.2"}, "those of 0.5.17 are used"),
    ],
    ids=["positions", "window", "replicated heads", "small pool", "old version"],
)  # fmt: skip
def test_surprises_are_noted(change, note):
    assert any(note in one for one in case(**change).notes)


def test_fp8_cache_doubles_the_tokens():
    plain, half = case(), case(kv_dtype="fp8")
    assert half.kv_tokens in (2 * plain.kv_tokens, 2 * plain.kv_tokens + 1)
    assert case(kv_dtype="fp8_e5m2").kv_tokens == half.kv_tokens


def test_pages_round_the_pool_down():
    assert case(attention_backend="trtllm_mha").kv_tokens % 64 == 0
    assert case(page_size=128).kv_tokens % 128 == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mem_fraction_static": 1.5}, "must lie between 0 and 1"),
        ({"mem_fraction_static": True}, "must lie between 0 and 1"),
        ({"engine": "vllm"}, "not supported; known: sglang, transformers"),
        ({"gpu": {}}, "gpu.total_mib is missing"),
        ({"gpu": "h20"}, "Did you mean h200?"),
        ({"gpu": "cpu"}, "use engine transformers there"),
        ({"gpu": {"total_mib": 1000, "free_before_weights_gib": 2}}, "more than the card has"),
        ({"gpu": {"total_mib": 1000, "free": 2}}, "unknown key gpu.free."),
        ({"tp_size": 0}, "tp_size is 0"),
        ({"tp_size": 3}, "num_attention_heads 28 is not a multiple of tp_size 3"),
        ({"tp_size": 7, "hf_config": {**planner.model_config("qwen2_5_7b"), "intermediate_size": 18900}},
         "neither divides nor is a multiple of num_key_value_heads 4"),
        ({"tp_size": 4, "dp_size": 4, "gpus": 8}, "needs 16 GPUs, gpus is 8"),
        ({"contextlength": 1}, "Did you mean context_length?"),
        ({"batch_size": 4}, "batch_size is not a setting of engine sglang"),
        ({"swa_full_tokens_ratio": 0}, "swa_full_tokens_ratio is 0"),
        ({"concurrency": 8}, "concurrency needs input_tokens and output_tokens"),
        ({"input_tokens": 16_000, "output_tokens": 1000}, "more than context_length 16384"),
        ({**LENGTHS, "concurrency": 9, "max_running_requests": 4, "dp_size": 2}, "above max_running_requests 4"),
        ({"enable_dp_attention": True}, "only whole replicas"),
        ({"kv_dtype": "int4"}, "kv_dtype is 'int4'"),
        ({"engine_version": "newest"}, "must be a version"),
        ({"hf_config": {"model_type": "mamba"}}, "not known"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_refused_with_the_reason(change, said):
    with pytest.raises(planner.CaseError) as refusal:
        case(**change)
    assert said in str(refusal.value)


def test_the_answer_is_flat_json():
    answer = case(**LENGTHS, concurrency=10).to_dict()
    assert json.loads(json.dumps(answer)) == answer
    contract = {"tier", "mem_fraction_static", "weights_gib", "kv_tokens", "kv_pool_gib", "request_table_gib",
                "graphs_gib", "free_after_start_gib", "starts", "minimum_mem_fraction_static", "components"}  # fmt: skip
    assert contract <= set(answer)


def test_a_card_of_a_row_may_be_smaller_or_partly_taken():
    """Its capability stays the row's: two rows of 80 GB could not be told apart by size."""
    of = {name: parse_serving_case({"kind": "serve", "hf_config": planner.model_config("qwen2_5_7b"), "gpu": gpu}).card
          for name, gpu in {"row": {"name": "h100"}, "cut": {"name": "h100", "total_mib": 40960},
                            "taken": {"name": "h100", "free_before_weights_gib": 50.0}}.items()}  # fmt: skip
    assert {card.capability for card in of.values()} == {(9, 0)}
    beside = of["row"].total_bytes - of["row"].free_bytes
    assert of["cut"].total_bytes - of["cut"].free_bytes == beside
    assert of["taken"].free_bytes == 50 * GIB
    with pytest.raises(planner.CaseError, match="Did you mean h100"):
        case(gpu={"name": "h10"})


def test_a_sampler_that_sorts_the_vocabulary_takes_more_for_each_request():
    """About 7 GiB at 805 requests over 152,064 words were seen on an H200."""
    plain, sorts = (
        case(gpu="h200", max_running_requests=805, mem_fraction_static=0.8, sorts_vocabulary=flag)
        for flag in (False, True)
    )
    assert sorts.kv_tokens == plain.kv_tokens
    assert plain.logits_bytes < sorts.logits_bytes
    rows = case(gpu="h200", max_running_requests=805, cuda_graph_max_bs=805, sorts_vocabulary=True)
    assert rows.logits_bytes / GIB == pytest.approx(7, rel=0.02)
    assert sorts.good_mem_fraction_static < plain.good_mem_fraction_static
