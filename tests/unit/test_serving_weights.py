"""Weights and cache of served models, against published parameter counts and figures of SGLang's source."""

import pytest
import yaml

import planner
from planner.serving.case import parse_serving_case
from planner.serving.formats import UNQUANTISED, weight_format
from planner.serving.kv import token_cell
from planner.serving.model import served_model
from planner.serving.weights import weight_bytes
from planner.tables import DATA

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "vocab_size": 129280, "max_position_embeddings": 163840, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
    "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def plain_bytes(config, tp=1, itemsize=1):
    return weight_bytes(served_model(config), UNQUANTISED, itemsize, tp=tp)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (DEEPSEEK_V3, 671_026_419_200),
        (GPT_OSS_20B, 20_914_757_184),
        ({**GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128}, 116_829_156_672),
        (QWEN3_30B_A3B, 30_532_122_624),
    ],
    ids=["deepseek-v3", "gpt-oss-20b", "gpt-oss-120b", "qwen3-30b-a3b"],
)
def test_parameters_of_published_models(config, parameters):
    """One byte a parameter: the counts that the hub's safetensors metadata give (without MTP layers)."""
    assert plain_bytes(config) == parameters


def test_parameters_of_every_shipped_shape_that_can_be_served():
    index = yaml.safe_load((DATA / "models/index.yaml").read_text())
    wrong = {}
    for name, row in index.items():
        try:
            found = plain_bytes(planner.model_config(name))
        except planner.CaseError:
            continue
        if found != row["parameters"]:
            wrong[name] = found - row["parameters"]
    assert wrong == {"deepseek_v3": 58 * 256}, (
        "a correction each expert of 58 layers: a buffer in transformers"
    )


@pytest.mark.parametrize(
    ("config", "tp", "itemsize", "per_token"),
    [
        ("llama3_1_8b", 1, 2, 131_072),  # 2 x 8 heads x 128 x 32 layers x 2 bytes
        ("llama3_1_8b", 1, 1, 65_536),
        ("llama3_1_8b", 8, 2, 16_384),
        ("llama3_1_8b", 16, 2, 16_384),  # more ranks than heads: replicated
        ("qwen2_5_7b", 1, 2, 57_344),
        ("gemma3_1b", 1, 2, 26_624),  # 2 x 1 x 256 x 26 x 2: window layers keep everything in SGLang
        (DEEPSEEK_V3, 1, 2, 70_272),  # (512 + 64) x 61 layers x 2 bytes, whole on each rank
        (DEEPSEEK_V3, 8, 2, 70_272),
    ],
)
def test_cache_bytes_of_a_token(config, tp, itemsize, per_token):
    model = served_model(planner.model_config(config) if isinstance(config, str) else config)
    cell = token_cell(model, itemsize, tp)
    assert (cell.full_bytes, cell.window_bytes) == (per_token, 0)


def test_gpt_oss_has_a_second_pool_for_its_window_layers():
    """Full layers hold T tokens, window layers 0.8 T: a byte budget divides by 12 F + 0.8 x 12 F."""
    layer = 2 * 8 * 64 * 2
    cell = token_cell(served_model(GPT_OSS_20B), 2, 1)
    assert (cell.full_bytes, cell.window_bytes, cell.window) == (12 * layer, 12 * layer, 128)
    forecast = planner.predict({"kind": "serve", "hf_config": GPT_OSS_20B, "gpu": "h200"})
    assert forecast.kv_window_tokens == int(0.8 * forecast.kv_tokens)
    budget = forecast.kv_tokens * (12 * layer + 0.8 * 12 * layer)
    assert forecast.kv_pool_bytes == pytest.approx(budget, rel=1e-5)
    even = planner.predict(
        {"kind": "serve", "hf_config": GPT_OSS_20B, "gpu": "h200", "swa_full_tokens_ratio": 0.1}
    )
    assert even.kv_tokens > 1.6 * forecast.kv_tokens


def test_tensor_parallel_ranks_replicate_norms_and_share_the_rest():
    config = planner.model_config("llama3_1_8b")
    norms = (2 * 32 + 1) * 4096
    assert plain_bytes(config, tp=8) == (plain_bytes(config) - norms) // 8 + norms
    key_value = 32 * 2 * 128 * 4096  # one pair of heads in each of 32 layers
    assert plain_bytes(config, tp=16) == (plain_bytes(config) - norms) // 16 + norms + key_value // 2


def test_latent_projections_are_whole_on_every_rank():
    whole = 61 * 7168 * (1536 + 512 + 64) + 58 * (256 * 7168 + 256) + 61 * (2 * 7168 + 2048) + 7168
    assert plain_bytes(DEEPSEEK_V3, tp=8) == (plain_bytes(DEEPSEEK_V3) - whole) // 8 + whole


@pytest.mark.parametrize(
    ("plan", "per_weight"),
    [
        (None, 2.0),
        ("fp8", 1.0),
        ("w8a8_int8", 1.0 + 4 / 4096),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0 + 4 / 128**2),
        ("awq", 0.5 + (2 + 0.5) / 128),
        (GPTQ, 0.5 + (2 + 0.5) / 128 + 4 / 4096),
        ({**GPTQ, "group_size": -1}, 0.5 + (2 + 0.5 + 4) / 4096),
        ({**GPTQ, "bits": 8}, 1.0 + (2 + 1) / 128 + 4 / 4096),
        ({"bits": 4, "double_quant": False}, 0.5 + 4 / 64),
        ({"bits": 8}, 1.0 + 4 / 4096),
        ("mxfp4", 0.5 + 1 / 32),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"a": {"weights": {"num_bits": 4, "group_size": 32}}}}, 0.5 + 2 / 32),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_bytes_of_a_quantised_weight(plan, per_weight):
    found = weight_format(plan, {}).matrix_bytes(4096, 4096, 2) / 4096**2
    assert found == pytest.approx(per_weight, rel=1e-6)


def test_only_linear_layers_are_quantised_and_gpt_oss_quantises_experts_alone():
    config = planner.model_config("llama3_1_8b")
    plan = weight_format("w8a8_int8", {})
    model = served_model(config)
    outer = 2 * 128_256 * 4096 + (2 * 32 + 1) * 4096
    linear = model and plain_bytes(config) - outer
    rows = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14_336 + 4096)
    assert weight_bytes(model, plan, 2) == 2 * outer + linear + 4 * rows
    small = weight_bytes(served_model(GPT_OSS_20B), weight_format("mxfp4", {}), 2)
    experts = 24 * 32 * 3 * 2880 * 2880
    assert small == plain_bytes(GPT_OSS_20B, itemsize=2) - experts * 2 + experts * 17 // 32


def test_the_checkpoint_says_how_it_was_quantised():
    config = {**planner.model_config("qwen2_5_7b"), "quantization_config": GPTQ}
    stated = parse_serving_case({"kind": "serve", "hf_config": config, "gpu": "h200"})
    asked = parse_serving_case(
        {
            "kind": "serve",
            "hf_config": planner.model_config("qwen2_5_7b"),
            "gpu": "h200",
            "quantization": GPTQ,
        }
    )
    assert stated.plan == asked.plan
    assert stated.plan.kind == "gptq"


@pytest.mark.parametrize(
    ("asked", "stated", "said"),
    [
        ("gptqq", {}, "Did you mean gptq?"),
        ("awq", GPTQ, "but the checkpoint says 'gptq'"),
        ({"bits": 4}, GPTQ, "keep one"),
        ({**GPTQ, "bits": 5}, {}, "bits is 5"),
        ({**GPTQ, "group_size": 0}, {}, "group_size is 0"),
        ({"bits": 3}, {}, "bitsandbytes knows 4 and 8"),
        ({"quant_method": "fp8", "weight_block_size": 128}, {}, "two whole numbers"),
        ({"quant_method": "compressed-tensors"}, {}, "one kind of weights.num_bits is needed"),
        (None, {"quant_method": "hqq"}, "hf_config.quantization_config.quant_method is 'hqq'"),
        (7, {}, "quantization is 7"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_quantisation_refused_with_the_reason(asked, stated, said):
    with pytest.raises(planner.CaseError) as refusal:
        weight_format(asked, stated)
    assert said in str(refusal.value)


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"])
@pytest.mark.parametrize("junk", [-1, "x", 0.5, True, [1]], ids=repr)
def test_junk_in_latent_and_expert_keys_is_refused(key, junk):
    with pytest.raises(planner.CaseError, match=key):
        served_model({**DEEPSEEK_V3, key: junk})


def test_an_indexer_is_refused():
    with pytest.raises(planner.CaseError, match="index_head_dim"):
        served_model({**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128})
