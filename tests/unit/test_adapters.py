"""What adapters add: parameters, and what they change in memory."""

import pytest
from tiny_cases import ADAPTERS, HIDDEN, LAYERS, LORA, TABLE, TOKENS, TOTAL, case_of, play

import planner
from planner.network.build import build_network
from planner.training import TrainingRun

QV = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


def counts(**changes):
    """Elements of all parameters, and of the trained ones."""
    parameters = build_network(case_of(**changes)).parameters()
    return sum(p.numel for p in parameters), sum(p.numel for p in parameters if p.trainable)


def lora(**more):
    return {"method": "lora", "lora": {**QV, **more}}


def test_lora_adds_two_factors_to_each_target():
    assert counts(**LORA) == (TOTAL + ADAPTERS, ADAPTERS)


def test_dora_adds_a_magnitude_for_each_output():
    magnitudes = LAYERS * 2 * HIDDEN
    assert counts(**lora(use_dora=True)) == (TOTAL + ADAPTERS + magnitudes, ADAPTERS + magnitudes)


def test_rslora_adds_nothing():
    assert counts(**lora(use_rslora=True)) == counts(**LORA)
    plain, scaled = (planner.forecast_training(case_of(**lora(use_rslora=flag))) for flag in (False, True))
    assert plain.peak_allocated_bytes == scaled.peak_allocated_bytes


def test_saved_modules_are_trained_in_a_copy():
    saved = lora(modules_to_save=["embed_tokens", "lm_head"])
    assert counts(**saved) == (TOTAL + ADAPTERS + 2 * TABLE, ADAPTERS + 2 * TABLE)


def test_a_trained_base_trains_everything():
    assert counts(**lora(train_base=True)) == (TOTAL + ADAPTERS, TOTAL + ADAPTERS)


@pytest.mark.parametrize(("dtype", "itemsize"), [("bf16", 2), ("fp32", 4)])
def test_adapters_have_a_type_of_their_own(dtype, itemsize):
    parameters = build_network(case_of(**lora(adapter_dtype=dtype))).parameters()
    assert {p.itemsize for p in parameters if p.trainable} == {itemsize}


def test_gradients_exist_for_what_is_trained_only():
    """The copy of the output layer gets a gradient, the weight that it stands for does not."""
    run = play(case_of(**lora(modules_to_save=["lm_head"]), zero_stage=2, seq_len=8))
    gradients = run.arena.asked("gradients")
    assert gradients.count(2 * TABLE) == 1
    assert gradients.count(2 * 4 * HIDDEN) == 2 * 2 * LAYERS


def test_dora_multiplies_its_weight_out_and_lets_it_go():
    """An identity, two factors' product, the scaled and the summed weight: no part lives into backward."""
    run = play(case_of(**lora(use_dora=True), zero_stage=2))
    made = run.arena.asked("adapter norms")
    square, thin = 2 * HIDDEN * HIDDEN, 2 * 4 * HIDDEN
    once = [square, thin, square, square, square]
    assert made == once * (2 * LAYERS)
    assert "adapter norms" not in {buffer.what for buffer in run.graph}


def forward_end(**changes):
    run = TrainingRun(case_of(**changes))
    run.play(steps=1)
    return next(phase.end_bytes for phase in run.arena.phases if phase.name == "forward 1")


def test_dora_with_dropout_computes_the_base_again():
    """Each of two targets keeps a dropped copy, where they shared their input before, and its mask.

    The first block's input needs no gradient, so nothing of its dropout is recorded and the mask goes.
    """
    dry, wet = (
        forward_end(**lora(use_dora=True, dropout=rate), zero_stage=2, seq_len=256) for rate in (0.0, 0.1)
    )
    numel = 256 * HIDDEN
    dropped, masks = LAYERS * (2 - 1) * 2 * numel, (LAYERS - 1) * 2 * numel
    assert wet - dry == dropped + masks
    dry, wet = (
        play(case_of(**lora(use_dora=True, dropout=rate), zero_stage=2, seq_len=256)).arena.asked(
            "activations"
        )
        for rate in (0.0, 0.1)
    )
    assert wet.count(numel) - dry.count(numel) == 2 * LAYERS  # one byte an element


def test_a_trained_base_keeps_activations_that_frozen_weights_do_not():
    long = {"zero_stage": 2, "seq_len": 512}
    frozen, trained = (
        TrainingRun(case_of(**lora(train_base=flag), **long)).play().peak_bytes for flag in (False, True)
    )
    assert trained > frozen + 512 * HIDDEN * 2


@pytest.mark.parametrize("efficient", [True, False])
def test_frozen_linears_keep_their_input_with_deepspeeds_function_only(efficient):
    """`memory_efficient_linear` off: autograd keeps gathered weights instead of inputs of frozen layers."""
    zero = {"memory_efficient_linear": efficient, "stage3_param_persistence_threshold": 0}
    case = case_of(**LORA, zero_stage=3, world_size=2, zero={**zero, "reduce_bucket_size": 1000})
    run = play(case)
    assert run.engine.keeps_inputs is efficient
    weight = run.network.layers[0].linears["o_proj"].weight
    run.engine.coordinator.whole[weight] = marker = run.arena.new(8, "gathered weights")
    assert run.engine.saved_weight(weight) is (None if efficient else marker)


def test_forward_ends_higher_where_inputs_are_kept_instead_of_weights():
    kept, plain = (
        forward_end(**LORA, zero_stage=3, seq_len=64 * TOKENS, zero={"memory_efficient_linear": efficient})
        for efficient in (True, False)
    )
    assert kept > plain


REFUSED = {
    "a module that is not known": (
        lora(modules_to_save=["score"]),
        "lora.modules_to_save 'score' is not supported. Known: embed_tokens, lm_head.",
    ),
    "a tied output layer": (
        {**lora(modules_to_save=["lm_head"]), "config": {"tie_word_embeddings": True}},
        "lora.modules_to_save 'lm_head': this model ties embedding and output layer",
    ),
    "a target that fits nothing": (
        lora(target_modules=["q_prj"]),
        "LoRA target 'q_prj' names no linear layer of a llama block. Did you mean q_proj?",
    ),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_where_the_network_is_built(change, said):
    with pytest.raises(planner.CaseError) as refusal:
        build_network(case_of(**change))
    assert said in str(refusal.value)
