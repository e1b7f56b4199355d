"""DPO, GRPO and PPO: several models in one allocator, from trl's and DeepSpeed-Chat's sources."""

import json

import pytest

import planner
from planner.__main__ import answer
from planner.memory.arena import Arena
from planner.memory.replay import gpu_allocator
from planner.network.scores import log_probabilities
from planner.tape.autograd import Tape, Tensor
from planner.tape.kernels import Workspaces

LLAMA = planner.model_config("tinyllama_1_1b")
SMALL = planner.model_config("qwen2_5_0_5b")
MODEL = 1_100_048_384
ONE = {"hf_config": LLAMA, "method": "full", "zero_stage": 2, "world_size": 2, "gradient_checkpointing": True}
LORA = {**ONE, "method": "lora", "lora": {"r": 8}}
ROLLOUT = {"prompt_tokens": 192, "completion_tokens": 64}
MIB = 1 << 20


def dpo(**changes):
    return planner.predict({"kind": "dpo", "policy": ONE, **changes})


def grpo(**changes):
    return planner.predict({"kind": "grpo", "policy": {**ONE, "micro_batch": 4}, **ROLLOUT, **changes})


def ppo(**changes):
    return planner.predict({"kind": "ppo", "actor": ONE, "critic": ONE, **ROLLOUT, **changes})


def test_dpo_holds_a_copy_of_the_model_as_reference():
    forecast = dpo()
    assert forecast.components["reference weights"] == pytest.approx(2 * MODEL, rel=1e-4)
    assert forecast.components["weights"] == pytest.approx(2 * MODEL, rel=1e-4)
    assert sum(forecast.components.values()) == forecast.peak_allocated_bytes


def test_dpo_on_adapters_takes_their_base_as_reference():
    forecast = dpo(policy=LORA)
    assert "reference weights" not in forecast.components
    assert any("adapters switched off" in note for note in forecast.notes)
    named = dpo(policy=LORA, reference={"hf_config": SMALL})
    assert named.components["reference weights"] < 2 * MODEL


def test_dpo_takes_chosen_and_rejected_answers_as_one_batch():
    """Logits and their log-softmax in 16 bits, of both models, before the policy's backward pass."""
    kinds = {words: {**LLAMA, "vocab_size": words} for words in (100_000, 200_000)}
    few, many = (
        dpo(policy={**LORA, "hf_config": config, "seq_len": 2048}).phases["policy forward 2"]
        for config in kinds.values()
    )
    weights = 2 * 100_000 * 2048 * 2
    rows = 2 * 2048
    per_logit = (many - few - weights) / (rows * 100_000)
    assert per_logit == pytest.approx(2 + 2 + 2 + 1, abs=0.1), "the reference's log-softmax goes row by row"


def test_dpo_switches_dropout_off():
    dropping = {**LORA, "lora": {"r": 8, "dropout": 0.1}}
    assert dpo(policy=dropping).peak_allocated_bytes == dpo(policy=LORA).peak_allocated_bytes


def test_a_reference_is_sharded_with_a_policy_at_stage_3():
    whole, shared = dpo(), dpo(policy={**ONE, "zero_stage": 3})
    assert shared.components["reference weights"] == pytest.approx(
        whole.components["reference weights"] / 2, rel=1e-3
    )


def test_grpo_without_beta_has_no_reference_and_with_it_has_one():
    assert "reference weights" not in grpo().components
    assert grpo(beta=0.04).components["reference weights"] == pytest.approx(2 * MODEL, rel=1e-4)


def test_grpo_generates_a_batch_whose_cache_grows_with_its_rows():
    """22 layers x 2 x 256 elements in bf16 a token: keys and values of 4 heads of 64."""
    few, many = (
        grpo(policy={**LORA, "micro_batch": 4}, steps_per_generation=steps).phases["generation 2"]
        for steps in (32, 64)
    )
    cache = 22 * 2 * 256 * 2 * (192 + 64 - 1) * 4 * 32
    assert many - few > cache
    assert many - few < 3 * cache


def test_grpo_gathers_a_sharded_policy_to_generate():
    kept = grpo(policy={**ONE, "zero_stage": 3, "micro_batch": 4}).phases
    whole = grpo(policy={**ONE, "zero_stage": 2, "micro_batch": 4}).phases
    assert (
        kept["generation 1"] - kept["policy engine start"]
        > whole["generation 1"] - whole["policy engine start"]
    )


def test_grpo_makes_logits_of_completions_only():
    """Logits and log-softmax of 64 + 1 of 256 positions, and what their backward pass adds."""
    few, many = (
        grpo(policy={**LORA, "hf_config": {**LLAMA, "vocab_size": words}, "micro_batch": 4})
        for words in (100_000, 200_000)
    )
    made = many.phases["policy forward 2"] - few.phases["policy forward 2"] - 2 * 100_000 * 2048 * 2
    assert made / (4 * 65 * 100_000) == pytest.approx(4, abs=0.2)


def test_ppo_holds_four_models_two_of_them_trained():
    forecast = ppo()
    parts = forecast.components
    assert parts["reference weights"] == pytest.approx(2 * MODEL, rel=1e-4)
    body = MODEL - 32000 * 2048  # the reward model has a value head in place of the output layer
    assert parts["reward weights"] == pytest.approx(2 * body, rel=1e-3)
    assert parts["optimizer states"] == pytest.approx(8 * (MODEL + body) / 2, rel=1e-3)
    assert {"actor load", "reference load", "critic load", "reward load"} <= set(forecast.phases)


def test_ppo_scores_before_it_learns():
    phases = list(ppo().phases)
    wanted = [
        "generation 1",
        "scoring 1",
        "actor forward 1",
        "actor step 1",
        "critic forward 1",
        "critic step 1",
    ]
    assert [name for name in phases if name in wanted] == wanted


def test_a_smaller_critic_needs_less():
    critic = {**ONE, "hf_config": SMALL}
    assert ppo(critic=critic).peak_allocated_bytes < ppo().peak_allocated_bytes


@pytest.mark.parametrize("kind", ["dpo", "grpo", "ppo"])
def test_every_kind_says_that_it_is_derived(kind):
    forecast = {"dpo": dpo, "grpo": grpo, "ppo": ppo}[kind]()
    assert any("not measured" in note for note in forecast.notes)
    assert forecast.start_peak_bytes <= forecast.required_bytes <= forecast.peak_reserved_bytes


def test_log_probabilities_of_rows_are_saved_in_the_type_of_the_logits():
    arena = Arena(gpu_allocator(expandable_segments=False))
    tape = Tape(arena, None, Workspaces(arena, 0))
    logits = Tensor(arena.new(64 * MIB, "activations"), 32 * MIB, 2)
    tape.attach(logits, lambda _: [], [])
    loss = log_probabilities(tape, logits, rows=4)
    assert arena.allocator.allocated == pytest.approx(128 * MIB, abs=MIB)
    del logits
    assert arena.allocator.allocated == pytest.approx(64 * MIB, abs=MIB), "log-softmax saved its output alone"
    arena.forget_peak()
    tape.backward(loss, arena.new(4, "loss"))
    assert arena.peak_bytes == pytest.approx(128 * MIB, abs=MIB), (
        "rows, their stack; then the padded gradient"
    )


def test_the_command_line_forecasts_them():
    line = json.dumps({"id": 1, "case": {"kind": "dpo", "policy": ONE, "memory_limit_gib": 80}})
    body = answer(line, 1, "formula")
    assert body["fits"] is True
    assert body["components"]["reference weights"] == pytest.approx(2 * MODEL / 2**30, rel=1e-3)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"kind": "dpo"}, "kind dpo needs policy"),
        ({"kind": "dpo", "policy": ONE, "reference": 7}, "reference must be a mapping"),
        ({"kind": "dpo", "policy": ONE, "reference": {"zero_stage": 3}}, "unknown key reference.zero_stage"),
        ({"kind": "dpo", "policy": {**ONE, "method": "ful"}}, "policy: method is 'ful'"),
        ({"kind": "dpo", "policy": {**ONE, "liger": True}}, "policy: liger is not modelled"),
        ({"kind": "dpo", "policy": {**ONE, "dtype": "fp32"}}, "policy: dtype fp32 is not modelled"),
        ({"kind": "dpo", "policy": {**ONE, "memory_limit_gib": 8}}, "it belongs to the job"),
        ({"kind": "dpo", "policy": ONE, "memory_limit_gib": -1}, "memory_limit_gib is -1"),
        ({"kind": "dpo", "policy": ONE, "beta": 0.1}, "unknown key 'beta' of kind dpo"),
        ({"kind": "dpo", "policy": {**LORA, "zero_stage": 3}}, "adapters at zero_stage 3"),
        ({"kind": "grpo", "policy": ONE}, "kind grpo needs prompt_tokens"),
        ({"kind": "grpo", "policy": ONE, **ROLLOUT, "num_generations": 8}, "num_generations 8 does not divide the 2"),
        ({"kind": "grpo", "policy": ONE, **ROLLOUT, "beta": -1}, "beta is -1"),
        ({"kind": "grpo", "policy": {**ONE, "seq_len": 99}, **ROLLOUT}, "prompt_tokens + completion_tokens is 256"),
        ({"kind": "grpo", "policy": ONE, **ROLLOUT, "reference": {"hf_config": LLAMA}}, "beta is 0"),
        ({"kind": "ppo", "actor": ONE, **ROLLOUT}, "kind ppo needs critic"),
        ({"kind": "ppo", "actor": ONE, "critic": {**ONE, "world_size": 4}, **ROLLOUT}, "critic.world_size is 4"),
        (
            {"kind": "ppo", "actor": {**ONE, "engine": "plain", "optimizer": "torch_adamw"}, "critic": ONE, **ROLLOUT},
            "actor: zero_stage is DeepSpeed's",
        ),
        ({"kind": "orpo"}, "known: dpo, grpo, mlp, ppo, serve, train"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_with_the_reason(case, reason):
    with pytest.raises(planner.CaseError) as refusal:
        planner.predict(case)
    assert reason in str(refusal.value)
