"""What transformers' `generate` needs, against hand-made sums and public figures."""

import json

import pytest

import planner

GIB = 1024**3
QWEN = planner.model_config("qwen2_5_7b")
WEIGHTS = 7_615_616_512 * 2
TOKEN = 57_344


def case(**changes):
    base = {"kind": "serve", "engine": "transformers", "hf_config": QWEN, "gpu": "a100-80gb"}
    return planner.predict({**base, **changes})


def test_decode_holds_the_cache_and_one_longer_copy():
    forecast = case(input_tokens=1, output_tokens=8000)
    cache, copy, workspace = 8000 * TOKEN, 8000 * TOKEN // 56, (2 * 4096 + 128) * 1024
    assert forecast.phase == "decode"
    assert forecast.components == {
        "weights": WEIGHTS, "cublas workspace": workspace, "kv_cache": cache, "cache growth": copy
    }  # fmt: skip
    assert forecast.peak_allocated_bytes == sum(forecast.components.values())


def test_prefill_holds_the_feed_forward_and_four_copies_of_the_hidden_state():
    forecast = case(input_tokens=30_720, output_tokens=10)
    assert forecast.phase == "prefill"
    assert forecast.prefill_activations_bytes == 30_720 * 2 * (4 * 3584 + 3 * 18_944 + 2 * 128)
    assert forecast.components["kv_cache"] == 30_720 * TOKEN


@pytest.mark.parametrize(
    ("size", "given", "stated_gib"),
    [("1_5b", 30_720, 5.62), ("7b", 1, 14.38), ("7b", 30_720, 19.97), ("14b", 30_720, 36.85), ("32b", 30_720, 74.47)],
)  # fmt: skip
def test_public_figures(size, given, stated_gib):
    """Qwen2.5 speed benchmark (Transformers, 2048 new tokens, one A100): its page states the torch peak."""
    forecast = case(
        hf_config=planner.model_config(f"qwen2_5_{size}"), input_tokens=given, output_tokens=2048,
        attention="flash_attention_2",
    )  # fmt: skip
    assert forecast.peak_allocated_bytes / GIB == pytest.approx(stated_gib, rel=0.01)


GEMMA2 = {
    **planner.model_config("gemma2_9b"), "num_hidden_layers": 4, "hidden_size": 3584, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256_000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "tokens", "beside_bytes"), [(1, 4096, 3_078_652_928), (4, 1024, 1_011_885_056)]
)
def test_eager_prefill_is_what_an_h200_took(batch, tokens, beside_bytes):
    """Weights and workspace left out; torch 2.11.0, transformers 5.17.0, bf16: softmax casts its input first."""
    forecast = case(
        hf_config=GEMMA2, batch_size=batch, input_tokens=tokens, output_tokens=1, attention="eager"
    )
    held = sum(
        size for name, size in forecast.components.items() if name not in ("weights", "cublas workspace")
    )
    assert held == pytest.approx(beside_bytes, rel=0.005)


def test_old_releases_hold_two_caches_and_the_logits_of_the_whole_prompt():
    old, new = (case(input_tokens=1, output_tokens=8000, engine_version=v) for v in ("4.32", "5.23"))
    assert old.peak_allocated_bytes - new.peak_allocated_bytes == 7999 * TOKEN - new.kv_growth_bytes
    prompt = case(input_tokens=4096, output_tokens=1, engine_version="4.40.1")
    assert prompt.prefill_activations_bytes == 4096 * 152_064 * 6


def test_the_largest_batch_fits_and_one_more_does_not():
    shape = {"input_tokens": 2000, "output_tokens": 500}
    most = case(**shape).largest_batch
    assert case(**shape, batch_size=most).fits
    over = case(**shape, batch_size=most + 1)
    assert (over.fits, over.label) == (False, "does not fit")
    assert over.fix.startswith("batch_size=")
    assert "largest part" in over.cause


@pytest.mark.parametrize(
    ("plan", "per_weight"),
    [({"bits": 4, "double_quant": True}, 0.5 + 1 / 64 + 4 / 64 / 256), ({"bits": 8}, 1.0), ("bitsandbytes", 0.5625)],
    ids=["nf4 double", "int8", "named"],
)  # fmt: skip
def test_a_bitsandbytes_base(plan, per_weight):
    outer = 2 * 152_064 * 3584
    linear = WEIGHTS // 2 - outer
    found = (case(quantization=plan).weights_bytes - 2 * outer) / linear
    assert found == pytest.approx(per_weight, rel=0.002)


def test_window_layers_keep_the_prompt_until_the_first_new_token():
    """Gemma 3 1B: 4 of 26 layers are full, the others keep 511 tokens while decoding."""
    config = planner.model_config("gemma3_1b")
    forecast = case(hf_config=config, input_tokens=4000, output_tokens=2)
    layer = 2 * 256 * 2
    assert forecast.components["kv_cache"] == 4000 * 26 * layer
    assert forecast.kv_cache_bytes == (4 * 4001 + 22 * 511) * layer


def test_eager_attention_is_dearer_and_the_fix_names_it():
    short = {"input_tokens": 8000, "output_tokens": 8}
    assert case(**short, attention="eager").peak_allocated_bytes > case(**short).peak_allocated_bytes
    over = case(input_tokens=30_000, output_tokens=8, attention="eager")
    assert over.fix.startswith("attention=sdpa")


def test_a_machine_without_gpu_counts_the_process_and_needs_a_limit_for_a_verdict():
    free = case(gpu="cpu", dtype="fp32")
    assert free.weights_bytes == 2 * WEIGHTS
    assert (free.fits, free.label, free.largest_batch) == (None, None, None)
    assert "cublas workspace" not in free.components
    assert free.device_used_bytes > free.peak_allocated_bytes
    limited = case(gpu="cpu", dtype="fp32", memory_limit_gib=24)
    assert (limited.fits, limited.label) == (False, "does not fit")
    assert limited.largest_batch == 0


def test_more_tokens_and_sequences_never_need_less():
    peaks = [
        case(batch_size=batch, input_tokens=given, output_tokens=new).peak_allocated_bytes
        for batch, given, new in ((1, 10, 10), (1, 10, 500), (1, 500, 500), (4, 500, 500), (4, 4000, 500))
    ]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tp_size": 2}, "tp_size is not a setting of engine transformers"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"attention": "flash"}, "attention is 'flash'"),
        ({"memory_limit_gib": -1}, "memory_limit_gib is -1"),
        ({"padded": "yes"}, "padded is 'yes'"),
        ({"batchsize": 2}, "Did you mean batch_size?"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused_with_the_reason(change, said):
    with pytest.raises(planner.CaseError) as refusal:
        case(**change)
    assert said in str(refusal.value)


def test_the_answer_is_flat_json():
    answer = case(batch_size=8).to_dict()
    assert json.loads(json.dumps(answer)) == answer
    assert answer["peak_allocated_gib"] == pytest.approx(sum(answer["components"].values()), abs=0.001)
