"""The planner's tables: every row is whole, plausible and sourced, and every shape has the published size.

The parameter formulas below are written for this test alone, so that they check the planner's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

DATA = Path(__file__).resolve().parents[2] / "planner" / "data"
MODELS = DATA / "models"
Row = dict[str, Any]

NUMBER = (int, float)
GPU_COLUMNS: dict[str, tuple[type, ...]] = {
    "title": (str,),
    "vendor": (str,),
    "memory_gib": NUMBER,
    "usable_gib": NUMBER,
    "context_gib": NUMBER,
    "compute_capability": (str,),
    "multiprocessors": (int,),
    "bf16": (bool,),
    "fp16_tflops": NUMBER,
    "bf16_tflops": (*NUMBER, type(None)),
    "memory_bandwidth_gb_s": NUMBER,
    "link": (str,),
    "link_gb_s": NUMBER,
    "pcie_gb_s": NUMBER,
    "source": (str,),
    "note": (str,),
}
GPU_RANGES = {
    "memory_gib": (8, 512),
    "context_gib": (0.3, 1.2),
    "fp16_tflops": (50, 5000),
    "memory_bandwidth_gb_s": (200, 20_000),
    "link_gb_s": (10, 2000),
    "multiprocessors": (40, 304),
    "pcie_gb_s": (10, 130),
}
EXPECTED_GPUS = {
    *("v100-16gb", "v100-32gb", "t4"),
    *("rtx3090", "rtx4080", "rtx4090", "rtx5090"),
    *("a10g", "l4", "l40s", "a6000", "a100-40gb", "a100-80gb"),
    *("h100", "h200", "b200", "mi300x"),
}
SHAPE_KEYS = {"model_type", "vocab_size", "tie_word_embeddings", "torch_dtype"}
DTYPES = {"float32", "float16", "bfloat16"}
LARGEST_DRIVER_SHARE_GIB = 1.0

# Figures that are easy to get wrong: boost clocks, sparsity and fp16 accumulation inflate the marketing ones.
DENSE_TFLOPS = {
    "v100-32gb": 125,
    "t4": 65,
    "rtx3090": 71,
    "rtx4090": 165.2,
    "a10g": 70,
    "l4": 121,
    "h100": 989,
}


def load_yaml(path: Path) -> dict[str, Row]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


GPUS = load_yaml(DATA / "gpus.yaml")
INDEX = load_yaml(MODELS / "index.yaml")


def shape(name: str) -> Row:
    return json.loads((MODELS / INDEX[name]["file"]).read_text(encoding="utf-8"))


def each(table: dict[str, Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", sorted(table))


def capability(row: Row) -> tuple[int, ...]:
    return tuple(int(part) for part in row["compute_capability"].split("."))


# ---- GPUs


def test_the_gpu_table_has_every_promised_card() -> None:
    assert set(GPUS) >= EXPECTED_GPUS


@each(GPUS)
def test_a_gpu_row_has_exactly_the_known_columns_of_the_right_type(name: str) -> None:
    row = GPUS[name]
    assert set(row) - {"note"} == set(GPU_COLUMNS) - {"note"}
    for key, value in row.items():
        assert isinstance(value, GPU_COLUMNS[key]), f"{name}.{key} = {value!r}"
        assert isinstance(value, bool) == (GPU_COLUMNS[key] == (bool,)), f"{name}.{key} = {value!r}"


@each(GPUS)
def test_gpu_figures_are_plausible(name: str) -> None:
    row = GPUS[name]
    for key, (low, high) in GPU_RANGES.items():
        assert low <= row[key] <= high, f"{name}.{key} = {row[key]}"
    assert row["vendor"] in {"nvidia", "amd"}
    assert row["link"] in {"nvlink", "pcie", "infinity-fabric"}
    assert (row["link"] == "pcie") == (row["link_gb_s"] == row["pcie_gb_s"])
    assert row["source"].startswith("https://")


@each(GPUS)
def test_usable_memory_leaves_room_for_driver_and_context(name: str) -> None:
    row = GPUS[name]
    driver_gib = row["memory_gib"] - row["usable_gib"] - row["context_gib"]
    assert row["usable_gib"] < row["memory_gib"]
    assert 0 < driver_gib < LARGEST_DRIVER_SHARE_GIB


@each(GPUS)
def test_bf16_agrees_with_the_compute_capability(name: str) -> None:
    row = GPUS[name]
    assert row["bf16"] == (row["bf16_tflops"] is not None)
    if row["vendor"] == "nvidia":
        assert row["bf16"] == (capability(row) >= (8, 0))
    if row["bf16"]:
        assert row["bf16_tflops"] == row["fp16_tflops"]


@pytest.mark.parametrize(("name", "tflops"), DENSE_TFLOPS.items(), ids=DENSE_TFLOPS)
def test_tflops_are_dense_with_fp32_accumulation(name: str, tflops: float) -> None:
    assert GPUS[name]["fp16_tflops"] == tflops


# ---- Model shapes


def test_index_and_folder_hold_the_same_models() -> None:
    files = {path.name for path in MODELS.glob("*.json")}
    assert {row["file"] for row in INDEX.values()} == files
    assert all(row["file"] == f"{name}.json" for name, row in INDEX.items())
    assert len(files) >= 37


@each(INDEX)
def test_an_index_row_names_its_source(name: str) -> None:
    row = INDEX[name]
    assert set(row) - {"note"} == {"file", "hub_id", "parameters", "source"}
    assert row["hub_id"].count("/") == 1
    assert row["source"].startswith("https://") and row["source"].endswith(row["hub_id"])


@each(INDEX)
def test_a_shape_states_what_decides_memory(name: str) -> None:
    config = shape(name)
    assert set(config) >= SHAPE_KEYS
    assert "max_position_embeddings" in config or "n_positions" in config
    assert config["torch_dtype"] in DTYPES
    assert isinstance(config["tie_word_embeddings"], bool)
    assert config["model_type"] in PARAMETER_FORMULAS


def test_the_million_token_model_keeps_its_long_context_keys() -> None:
    config = shape("qwen2_5_7b_instruct_1m")
    assert config["max_position_embeddings"] == 1_010_000
    assert config["dual_chunk_attention_config"]["original_max_position_embeddings"] == 262_144


# ---- Parameter counts


def embeddings(c: Row, hidden: int) -> int:
    """Token table, twice when the head has weights of its own."""
    return c["vocab_size"] * hidden * (1 if c["tie_word_embeddings"] else 2)


def gated_decoder(
    c: Row, *, norms: int = 2, qkv_bias: bool = False, qk_norm: bool = False, experts: int = 0
) -> int:
    """Llama and its relatives: RMSNorm, grouped-query attention, a gated MLP (or several with a router)."""
    hidden, heads, kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    head_dim = c.get("head_dim") or hidden // heads
    query, key_value = heads * head_dim, 2 * kv_heads * head_dim
    attention = hidden * (query + key_value) + query * hidden
    biases = query + key_value if qkv_bias else 0
    head_norms = 2 * head_dim if qk_norm else 0
    mlp = 3 * hidden * c["intermediate_size"] * max(experts, 1) + hidden * experts
    layer = attention + biases + head_norms + mlp + norms * hidden
    return embeddings(c, hidden) + c["num_hidden_layers"] * layer + hidden


def gpt2(c: Row) -> int:
    """Learned positions, LayerNorm with bias, biases everywhere, MLP of four times the width."""
    hidden = c["n_embd"]
    layer = 12 * hidden**2 + 13 * hidden
    return embeddings(c, hidden) + c["n_positions"] * hidden + c["n_layer"] * layer + 2 * hidden


def opt(c: Row) -> int:
    """GPT-2's layout with a free MLP width and two spare rows in the position table."""
    hidden, mlp = c["hidden_size"], c["ffn_dim"]
    layer = 4 * hidden * (hidden + 1) + 2 * hidden * mlp + mlp + hidden + 4 * hidden
    positions = (c["max_position_embeddings"] + 2) * hidden
    return embeddings(c, hidden) + positions + c["num_hidden_layers"] * layer + 2 * hidden


def falcon(c: Row) -> int:
    """Parallel attention and MLP behind one LayerNorm, one key-value head, no biases on matrices."""
    hidden = c["hidden_size"]
    head_dim = hidden // c["num_attention_heads"]
    layer = hidden * (hidden + 2 * head_dim) + hidden**2 + 8 * hidden**2 + 2 * hidden
    return embeddings(c, hidden) + c["num_hidden_layers"] * layer + 2 * hidden


def attention(c: Row) -> int:
    """Query, key, value and output matrices of one block."""
    hidden, head_dim = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    groups = c.get("num_key_value_heads") or c["num_attention_heads"]
    return hidden * head_dim * 2 * (c["num_attention_heads"] + groups)


def biased_decoder(c: Row, *, norms: int, head_bias: bool = False) -> int:
    """LayerNorm with bias, two matrices in the MLP, and a bias on every matrix of a block."""
    hidden, mlp = c["hidden_size"], c["intermediate_size"]
    groups = c.get("num_key_value_heads") or c["num_attention_heads"]
    biases = 2 * hidden + 2 * groups * hidden // c["num_attention_heads"] + mlp + hidden
    layer = attention(c) + 2 * hidden * mlp + biases + 2 * norms * hidden
    head = c["vocab_size"] if head_bias else 0
    return embeddings(c, hidden) + head + c["num_hidden_layers"] * layer + 2 * hidden


def mixture(c: Row, *, extra: int = 0) -> int:
    """Gated experts behind a router; `extra` weights a block beside attention, experts and two norms."""
    hidden, experts = c["hidden_size"], c["num_experts"]
    width = c.get("moe_intermediate_size", c["intermediate_size"])
    layer = attention(c) + experts * (3 * hidden * width + hidden) + 2 * hidden + extra
    return embeddings(c, hidden) + c["num_hidden_layers"] * layer + hidden


def qwen2_moe(c: Row) -> int:
    """A shared expert with a gate of one number a token, and biases on queries, keys and values."""
    hidden = c["hidden_size"]
    return mixture(c, extra=3 * hidden * c["shared_expert_intermediate_size"] + hidden + 3 * hidden)


def deepseek(c: Row) -> int:
    """Latent attention in every block; the first blocks have one MLP, the others experts."""
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    turned, fixed, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    low = c["q_lora_rank"]
    width = heads * (turned + fixed)
    queries = hidden * width if low is None else hidden * low + low + low * width
    keys = hidden * (rank + turned) + rank + rank * heads * (fixed + value)
    block = queries + keys + heads * value * hidden + 2 * hidden
    dense = c["first_k_dense_replace"]
    expert = 3 * hidden * c["moe_intermediate_size"]
    sparse = (c["n_routed_experts"] + c["n_shared_experts"]) * expert + hidden * c["n_routed_experts"]
    layers = c["num_hidden_layers"]
    blocks = layers * block + dense * 3 * hidden * c["intermediate_size"] + (layers - dense) * sparse
    return embeddings(c, hidden) + blocks + hidden


def stablelm(c: Row) -> int:
    """Llama with LayerNorm and its biases."""
    norms = 2 * c["num_hidden_layers"] + 1
    return gated_decoder(c, qkv_bias=c["use_qkv_bias"]) + norms * c["hidden_size"]


def olmo2(c: Row) -> int:
    """Llama with norms over all queries and all keys of a block."""
    return gated_decoder(c) + c["num_hidden_layers"] * 2 * c["hidden_size"]


PARAMETER_FORMULAS: dict[str, Callable[[Row], int]] = {
    "llama": gated_decoder,
    "mistral": gated_decoder,
    "phi3": gated_decoder,
    "qwen2": lambda c: gated_decoder(c, qkv_bias=True),
    "qwen3": lambda c: gated_decoder(c, qk_norm=True),
    "gemma2": lambda c: gated_decoder(c, norms=4),
    "gemma3_text": lambda c: gated_decoder(c, norms=4, qk_norm=True),
    "mixtral": lambda c: gated_decoder(c, experts=c["num_local_experts"]),
    "gpt2": gpt2,
    "opt": opt,
    "falcon": falcon,
    "phi": lambda c: biased_decoder(c, norms=1, head_bias=True),
    "gpt_neox": lambda c: biased_decoder(c, norms=2),
    "starcoder2": lambda c: biased_decoder(c, norms=2),
    "stablelm": stablelm,
    "smollm3": gated_decoder,
    "olmo2": olmo2,
    "glm": lambda c: gated_decoder(c, qkv_bias=c["attention_bias"]),
    "olmoe": lambda c: mixture(c, extra=2 * c["hidden_size"]),
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": lambda c: mixture(c, extra=2 * c["head_dim"]),
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
}


@each(INDEX)
def test_the_shape_has_the_published_number_of_parameters(name: str) -> None:
    config = shape(name)
    assert PARAMETER_FORMULAS[config["model_type"]](config) == INDEX[name]["parameters"]


def smallest_of_each_family() -> list[str]:
    by_size = sorted(INDEX, key=lambda name: -INDEX[name]["parameters"])
    return sorted({shape(name)["model_type"]: name for name in by_size}.values())


@pytest.mark.engine
@pytest.mark.parametrize("name", smallest_of_each_family())
def test_transformers_builds_the_same_number_of_parameters(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**shape(name))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(weight.numel() for weight in model.parameters()) == INDEX[name]["parameters"]
