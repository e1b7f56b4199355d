"""GPTQ and old bitsandbytes, LitGPT's code, sequence parallelism: figures worked out from the sources."""

import json

import pytest

import planner
from planner.memory.arena import Arena
from planner.memory.replay import gpu_allocator
from planner.network.gptq import gptq_parts
from planner.network.ulysses import exchanged
from planner.parsing import parse_training_case
from planner.tape.autograd import Tape, Tensor
from planner.tape.kernels import Workspaces
from planner.training import TrainingRun
from planner.training_case import Quantization

LLAMA = planner.model_config("tinyllama_1_1b")  # 22 blocks, 4 key-value heads of 32, 32000 words
BLOCK = 2 * 2048 * 2048 + 2 * 256 * 2048 + 3 * 5632 * 2048 + 2 * 2048
ROOT = 2 * 32000 * 2048 + 2048
MODEL = 22 * BLOCK + ROOT
BASE = {"hf_config": LLAMA, "method": "full", "seq_len": 256, "gradient_checkpointing": True}
FSDP = {**BASE, "engine": "fsdp2", "optimizer": "torch_adamw", "world_size": 4}
QLORA = {
    "hf_config": LLAMA,
    "method": "qlora",
    "lora": {"r": 8},
    "quantization": {"kind": "gptq", "bits": 4, "group_size": 128},
    "seq_len": 256,
    "engine": "plain",
    "optimizer": "torch_adamw",
}
MIB = 1 << 20


def near(nbytes, expected, slack=16 * MIB):
    return abs(nbytes - expected) <= slack


def forecast(case, **changes):
    return planner.predict({**case, **changes})


def with_base(**keys):
    return {**QLORA, "quantization": {**QLORA["quantization"], **keys}}


def bnb(**keys):
    return {**QLORA, "quantization": {"bits": 4, "prepare_for_kbit_training": False, **keys}}


def test_gptq_stores_words_zeros_scales_and_the_order():
    assert gptq_parts((256, 2048), Quantization(kind="gptq", bits=3, group_size=-1)) == (
        196608,
        96,
        512,
        8192,
    )
    parts = gptq_parts((2048, 5632), Quantization(kind="gptq", bits=4, group_size=128))
    assert parts == (704 * 2048 * 4, 44 * 256 * 4, 44 * 2048 * 2, 5632 * 4)


def test_gptq_base_saves_every_unpacked_matrix_until_its_backward():
    matrices = (BLOCK - 2 * 2048) * 2
    assert 21 * matrices < forecast(QLORA).components["unpacked weights"] <= 22 * matrices
    checkpointed = forecast(QLORA, gradient_checkpointing=True).components
    cast = 2048 * 5632 * 2  # from fp16 to bf16: both are there for a moment
    assert checkpointed.get("unpacked weights", 0) <= matrices + cast, "one block's at most"


def test_gptq_base_is_left_in_its_type_by_kbit_preparation():
    prepared, plain = with_base(), with_base(prepare_for_kbit_training=False)
    assert forecast(prepared).components["weights"] == forecast(plain).components["weights"]


def test_gptq_base_is_packed_before_it_arrives():
    phases = forecast(with_base()).phases
    assert phases["load"] == phases["engine start"]


@pytest.mark.parametrize(
    ("keys", "keeps"),
    [
        ({}, False),
        ({"bnb_version": "0.43.2"}, False),
        ({"bnb_version": "0.43.1"}, True),
        ({"bnb_version": "0.42.0"}, True),
        ({"bits": 8}, True),
        ({"bits": 8, "bnb_version": "0.50.1"}, True),
    ],
)
def test_bitsandbytes_keeps_inputs_up_to_0_43_1_and_always_in_8_bits(keys, keeps):
    assert parse_training_case(bnb(**keys)).quantization.keeps_inputs is keeps


def test_kept_inputs_live_through_checkpoints():
    tokens, layers = 2048, 22
    per_token = (
        4 * 2048 + 2048 + 5632
    )  # q, k, v share theirs with each other, gate with up: counted once below
    shared = (2048 + 2048 + 2048 + 5632) * 2 * tokens * layers
    old, new = (
        forecast(bnb(bnb_version=version), gradient_checkpointing=True, seq_len=tokens)
        for version in ("0.43.1", "0.43.2")
    )
    extra = old.peak_allocated_bytes - new.peak_allocated_bytes
    assert near(extra, shared, slack=0.1 * shared)
    assert extra < per_token * 2 * tokens * layers


def test_unpacking_to_another_type_holds_both_for_a_moment():
    whole = {name: forecast(bnb(unpacked_dtype=name), seq_len=8) for name in ("bf16", "fp16")}
    largest = 5632 * 2048 * 2
    extra = whole["fp16"].peak_allocated_bytes - whole["bf16"].peak_allocated_bytes
    assert 0 <= extra <= largest + MIB
    assert forecast(bnb(unpacked_dtype="fp16"), seq_len=1).components["unpacked weights"] >= largest


def test_a_quantised_output_layer_is_stored_packed():
    saved = 32000 * 2048 * 2 - 32000 * 2048 // 2  # half a byte; its scales are small
    half, packed = (TrainingRun(parse_training_case(bnb(head=head))) for head in (False, True))
    for run in (half, packed):
        run.engine.load()
    difference = half.arena.allocator.allocated - packed.arena.allocator.allocated
    assert near(difference, saved, slack=32000 * 2048 // 64 + MIB)


def test_litgpts_loop_holds_ten_bytes_a_logit():
    """Earlier fp32 logits, new ones in 16 bits and in fp32, at the end of a forward pass."""
    lora = {
        "method": "lora",
        "lora": {"r": 1},
        "engine": "plain",
        "optimizer": "torch_adamw",
        "seq_len": 1024,
    }
    case = {**BASE, **lora, "loss": "litgpt_chunked", "gradient_checkpointing": True}
    few, many = (
        forecast({**case, "hf_config": {**LLAMA, "vocab_size": words}}).peak_allocated_bytes
        for words in (200_000, 300_000)
    )
    weights = 2 * 100_000 * 2048 * 2
    assert (many - few - weights) / (1024 * 100_000) == pytest.approx(10, abs=0.05)


def test_litgpts_full_loss_cuts_rows_and_pads_their_gradients():
    full = {**BASE, "engine": "plain", "optimizer": "torch_adamw", "seq_len": 1024, "micro_batch": 2}
    assert forecast(full, loss="litgpt_chunked").peak_allocated_bytes > 0
    stock = forecast(full).phases["forward 2"]
    assert forecast(full, loss="litgpt_chunked").phases["forward 2"] > stock, "its logits outlive the step"


def test_litgpts_attention_projects_at_once_and_builds_no_mask():
    falcon = {
        **BASE,
        "hf_config": planner.model_config("falcon_7b") if "falcon_7b" in planner.model_names() else LLAMA,
    }
    own = parse_training_case({**falcon, "attention_code": "litgpt"}).architecture
    assert own.fused_qkv
    assert not own.always_masked
    assert not own.copied_keys


def test_litgpts_attention_saves_keys_and_values_of_all_query_heads():
    lora = {
        **BASE,
        "method": "lora",
        "lora": {"r": 1, "target_modules": ["o_proj"]},
        "gradient_checkpointing": False,
    }
    own, other = (
        forecast(lora, attention_code=code, seq_len=1024, engine="plain", optimizer="torch_adamw").phases[
            "forward 1"
        ]
        for code in ("litgpt", "transformers")
    )
    first_block_needs_none = 21
    assert near(own - other, 2 * (2048 - 256) * 2 * 1024 * first_block_needs_none, slack=10 * MIB)


def test_an_exchange_between_ranks_makes_three_copies_and_leaves_one():
    arena = Arena(gpu_allocator(expandable_segments=False))
    tape = Tape(arena, None, Workspaces(arena, 0))
    x = Tensor(arena.new(1 << 20, "activations"), 1 << 19, 2)
    arena.forget_peak()
    out = exchanged(tape, x)
    assert arena.peak_bytes == 4 << 20
    assert arena.allocator.allocated == 2 << 20
    assert out.numel == x.numel


def test_sequence_parallel_holds_exchanged_tensors_and_says_so():
    long = {**BASE, "method": "lora", "lora": {"r": 1}, "world_size": 2, "seq_len": 8192}
    alone, shared = (forecast(long, sequence_parallel=ranks) for ranks in (1, 2))
    assert shared.peak_allocated_bytes < alone.peak_allocated_bytes
    assert any("sequence_parallel" in note and "not measured" in note for note in shared.notes)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"engine": "fsdp2", "optimizer": "torch_adamw"}, "engine fsdp2"),
        (QLORA, "a gptq base"),
        (bnb(bnb_version="0.42.0"), "bitsandbytes before 0.43.2"),
        ({"loss": "litgpt_chunked", "engine": "plain", "optimizer": "torch_adamw"}, "litgpt_chunked"),
    ],
)
def test_what_is_derived_says_so(change, what):
    notes = forecast({**BASE, **change}, gradient_checkpointing=True).notes
    assert any(what in note and "derived, not measured" in note for note in notes)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({**FSDP, "fsdp": {"reduce_dtype": "fp8"}}, "fsdp.reduce_dtype is 'fp8'"),
        ({**FSDP, "fsdp": {"fp32_param": True}}, "unknown key fsdp.fp32_param. Did you mean fp32_params?"),
        ({**FSDP, "fsdp": {"foreach": 1}}, "fsdp.foreach is 1; it must be true or false"),
        ({**BASE, "fsdp": {"fp32_params": True}}, "the engine is another"),
        ({**FSDP, "optimizer": "adamw_8bit"}, "optimizer adamw_8bit with engine fsdp2 is not modelled"),
        ({**FSDP, "checkpointing": {"kind": "reentrant"}}, "checkpointing.kind reentrant with engine fsdp2"),
        (with_base(bits=5), "quantization.bits is 5"),
        (with_base(double_quant=True), "quantization.double_quant is of bitsandbytes"),
        ({**QLORA, "lora": {"use_dora": True}}, "use_dora on a gptq base"),
        (with_base(head=True), "quantization.head with kind gptq"),
        (bnb(bnb_version=0.43), "quantization.bnb_version is 0.43"),
        (bnb(unpacked_dtype="int8"), "quantization.unpacked_dtype is 'int8'"),
        (
            {**bnb(head=True), "hf_config": planner.model_config("qwen2_5_0_5b")},
            "output layer is its embedding",
        ),
        ({**bnb(head=True), "liger": True}, "quantization.head with liger"),
        ({**BASE, "loss": "litgpt_chunked", "liger": True}, "neither liger nor outputs_kept"),
        ({**BASE, "sequence_parallel": 8, "world_size": 8}, "does not divide 4 key-value heads"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(case, reason):
    with pytest.raises(planner.CaseError) as refusal:
        planner.predict(case)
    assert reason in json.dumps(refusal.value.problems).replace("\\\\", "")
