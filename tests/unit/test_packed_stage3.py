"""QLoRA at ZeRO stage 3: what is sharded, what stays whole, and what is let go when."""

from dataclasses import replace

import pytest

import planner
from planner.deepspeed.stage3_packed import PackedStage3
from planner.grid.structures import consistent
from planner.network.build import build_network
from planner.training import TrainingRun

SHAPE = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2000, "tie_word_embeddings": False,
}  # fmt: skip
PACKED = 2 * (2 * 256 * 256 + 2 * 64 * 256 + 3 * 704 * 256)  # weights of the linear layers


def case_of(bits=4, **changes):
    zero = {"reduce_bucket_size": 1_000_000, "stage3_param_persistence_threshold": 0}
    case = {
        "hf_config": SHAPE, "method": "qlora", "lora": {"r": 4}, "quantization": {"bits": bits}, "zero_stage": 3,
        "seq_len": 64, "gpu": "cpu", "optimizer": "torch_adamw", "deepspeed": {"zero_optimization": zero},
    }  # fmt: skip
    return planner.parse_training_case(case | changes)


def started(bits, world_size):
    run = TrainingRun(case_of(bits, world_size=world_size))
    run.set_up()
    assert isinstance(run.engine, PackedStage3)
    return run, run.engine


def packed_shards(run, engine):
    return sum(engine.shards[p].nbytes for p in run.network.parameters() if p.quantized)


@pytest.mark.parametrize(("bits", "bytes_each"), [(4, 0.5), (8, 1)])
def test_shards_of_all_ranks_sum_up_to_the_packed_weights(bits, bytes_each):
    for ranks in (1, 2, 4):
        assert packed_shards(*started(bits, ranks)) * ranks == PACKED * bytes_each


@pytest.mark.parametrize("bits", [4, 8])
def test_scales_stay_whole_and_so_does_an_8_bit_base(bits):
    (run, engine), (_, halved) = started(bits, 1), started(bits, 2)
    for parameter in run.network.parameters():
        if parameter.quantized:
            scales = sum(parameter.parts) - max(parameter.parts)
            kept = scales + (parameter.numel if bits == 8 else 0)
            assert sum(one.nbytes for one in engine.loaded.weights[parameter]) == kept
    assert _whole(engine) == _whole(halved)


def _whole(engine):
    return sum(one.nbytes for parts in engine.loaded.weights.values() for one in parts)


def test_a_rank_loads_all_of_the_base_and_then_keeps_its_part():
    found = {}
    for ranks in (1, 2):
        run, _ = started(4, ranks)
        found[ranks] = {phase.name: phase.end_bytes for phase in run.arena.phases}
    assert found[1]["load"] == found[2]["load"]
    parameters = build_network(case_of()).parameters()
    frozen = sum(
        p.held_numel * (p.held_itemsize if p.quantized else 2) for p in parameters if not p.trainable
    )
    # a trained weight: its shard, and the fp32 copy and gradient of it
    trained = sum(p.numel * (2 + 4 + 2) for p in parameters if p.trainable)
    assert found[1]["engine start"] - found[2]["engine start"] == pytest.approx(
        (frozen + trained) / 2, rel=0.01
    )


def test_gathered_4_bit_weights_stay_for_backward_and_8_bit_ones_do_not():
    ends = {}
    for bits in (4, 8):
        run = TrainingRun(case_of(bits, world_size=2))
        run.play(steps=1)
        ends[bits] = {phase.name: phase.end_bytes for phase in run.arena.phases}
    first_layer_inputs = (256 * 256 + 2 * 64 * 256) // 2  # nothing trained lies below these three
    held = ends[4]["reduce 1"] - ends[4]["engine start"]
    assert held == PACKED // 2 - first_layer_inputs
    inputs = ends[8]["reduce 1"] - ends[8]["engine start"]
    assert inputs < PACKED // 2  # `MatMul8bitLt` keeps its inputs, of 64 tokens


def test_one_rank_needs_no_gathered_copies():
    run = TrainingRun(case_of(4))
    run.play(steps=1)
    ends = {phase.name: phase.end_bytes for phase in run.arena.phases}
    assert ends["reduce 1"] == ends["engine start"]


def test_it_may_be_chosen_but_not_with_a_gptq_base_or_weights_away():
    assert consistent(case_of())
    case = case_of()
    assert not consistent(replace(case, offload_optimizer="cpu", offload_param="cpu"))
    assert case.quantization is not None
    assert not consistent(replace(case, quantization=replace(case.quantization, kind="gptq")))


def test_its_forecast_says_that_it_is_derived():
    forecast = planner.forecast_training(case_of())
    assert "a quantised base at zero_stage 3: derived, not measured" in forecast.notes
