"""Model families: what is read, what is refused, and the planner's bookkeeping against the real code."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from benchmarks.trace_check.configs import CONFIGS, TARGETS, config_of
from benchmarks.trace_check.planned import planned_figures
from planner.architecture.families import FAMILIES, architecture_of
from planner.architecture.spec import Block, Norm, Rotary
from planner.network import feed_forward
from planner.network.build import build_network
from planner.tape import ops

GEMMA3 = {"model_type": "gemma3_text", **CONFIGS["gemma3_text"]}
REFUSED = {
    "unknown": ({"model_type": "qwen4"}, ["'qwen4'", "Did you mean qwen", "simulate", "hidden_size"]),
    "unknown but complete": (
        {**config_of("llama"), "model_type": "lama2"}, ["'lama2'", "Did you mean llama"],
    ),
    "a missing key": (
        {"model_type": "olmo2", "hidden_size": 64}, ["num_attention_heads", "olmo2"],
    ),
    "clipped queries": ({**config_of("olmo"), "clip_qkv": 8.0}, ["clip_qkv"]),
    "alibi": ({**config_of("falcon"), "alibi": True}, ["alibi"]),
    "norm of heads in phi": ({**config_of("phi"), "qk_layernorm": True}, ["qk_layernorm"]),
    "an activation we do not know": ({**config_of("gpt_neox"), "hidden_act": "gelu_fats"}, ["gelu_fats"]),
    "a share of the head above one": ({**config_of("phi"), "partial_rotary_factor": 1.5}, ["1.5"]),
    "too few layer types": ({**GEMMA3, "layer_types": ["sliding_attention"]}, ["layer_types"]),
    "a switch that is a word": ({**config_of("llama"), "attention_bias": "no"}, ["attention_bias", "'no'"]),
    "more experts a token than there are": (
        {**config_of("olmoe"), "num_experts_per_tok": 17}, ["17", "16 experts"],
    ),
    "images": ({"model_type": "gemma3", "text_config": GEMMA3, "vision_config": {}}, ["vision_config", "text"]),
}  # fmt: skip


def case(family: str, **changes):
    given = {"hf_config": config_of(family), "method": "full", "micro_batch": 2, "seq_len": 256, **changes}
    return planner.parse_training_case(given)


def peak(one) -> int:
    return planner.forecast_training(one).peak_allocated_bytes


@pytest.mark.parametrize(("config", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_configuration_is_refused_with_the_reason(config, said):
    with pytest.raises(planner.CaseError) as refusal:
        architecture_of(config)
    for words in said:
        assert words in str(refusal.value)


def test_a_complete_configuration_is_not_told_of_missing_keys():
    with pytest.raises(planner.CaseError) as refusal:
        architecture_of({**config_of("llama"), "model_type": "lama2"})
    assert "lacks" not in str(refusal.value)


def test_every_family_has_a_small_configuration_to_be_checked_with():
    checked = {config_of(name)["model_type"] for name in CONFIGS}
    assert checked == set(FAMILIES) - {"gemma3"}


JUNK = ([], {}, "x", -1, 0, float("nan"), float("inf"), 1 << 40, True)
MORE_KEYS = (
    *(
        "head_dim",
        "layer_types",
        "rope_parameters",
        "partial_rotary_factor",
        "mlp_only_layers",
        "decoder_sparse_step",
    ),
    *("no_rope_layers", "no_rope_layer_interval", "n_embed", "n_inner", "ffn_hidden_size", "hidden_dropout"),
    *("num_ln_in_parallel_attn", "tie_word_embeddings", "sliding_window", "num_kv_heads", "q_lora_rank"),
)


@pytest.mark.parametrize("family", CONFIGS)
def test_junk_is_refused_or_ignored_but_never_a_crash(family):
    config = config_of(family)
    for key in {*config, *MORE_KEYS} - {"model_type"}:
        for junk in JUNK:
            try:
                found = architecture_of({**config, key: junk})
            except planner.CaseError as refusal:
                assert str(refusal)
            else:
                assert (
                    min(found.layers, found.hidden, found.heads, found.kv_heads, found.head_dim, found.ffn)
                    > 0
                )


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("stage", [0, 3])
def test_every_family_is_played_through(family, stage):
    lora = {"r": 4, "target_modules": TARGETS.get(family, "all-linear")}
    full = case(family, zero_stage=stage, world_size=2)
    assert peak(full) > peak(case(family, zero_stage=stage, world_size=2, method="lora", lora=lora)) > 0


def test_the_text_part_of_a_gemma3_configuration_is_read():
    text = {k: v for k, v in GEMMA3.items() if k != "model_type"}
    assert architecture_of({"model_type": "gemma3", "text_config": text}) == architecture_of(GEMMA3)


@pytest.mark.parametrize(
    ("family", "habits"),
    {
        "phi": {"block": Block.parallel, "rotary_width": 32, "head_bias": True, "out_name": "dense"},
        "gpt_neox": {"block": Block.parallel_two_norms, "kv_heads": 4, "rotary_width": 16},
        "falcon": {"kv_heads": 1, "ffn": 1024, "tied": True, "qkv_bias": False},
        "falcon new": {"kv_heads": 2, "block": Block.parallel_two_norms},
        "olmo": {"norm": Norm.bare, "rotary": Rotary.fp32_tables},
        "olmo2": {"block": Block.post, "qk_norm_whole": True},
        "smollm3": {"unrotated_layers": (3,), "tied": True},
        "bloom": {"rotary": Rotary.none, "ffn": 1024, "embedding_norm": True},
        "gpt_bigcode": {"kv_heads": 1, "learned_positions": 1024},
        "mistral windowed": {"windowed_layers": (0, 1, 2), "global_layers": 0},
        "gemma3_text windowed": {"windowed_layers": (0, 1), "global_layers": 1},
    }.items(),
)
def test_habits_of_a_family(family, habits):
    found = architecture_of(config_of(family))
    assert {name: getattr(found, name) for name in habits} == habits


def test_blocks_of_a_mixture_may_differ():
    network = build_network(case("deepseek_v3"))
    assert "gate_proj" in network.layers[0].linears
    assert "experts.gate_up_proj" not in network.layers[0].linears
    assert network.layers[1].linears["experts.gate_up_proj"].weight.shape == (16, 384, 256)
    assert "shared_experts.up_proj" in network.layers[1].linears
    sparse = architecture_of({**config_of("qwen3_moe"), "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert sparse.experts is not None
    assert sparse.experts.dense_layers == (0, 1, 2)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
def test_adapters_on_stacked_experts_are_refused_with_what_to_name(family):
    with pytest.raises(planner.CaseError, match=r"stacked experts.*kv_b_proj|stacked experts.*q_proj"):
        peak(case(family, method="lora", lora={"target_modules": "all-linear"}))


def test_all_linear_reaches_the_shared_expert():
    network = build_network(case("qwen2_moe", method="lora", lora={"target_modules": "all-linear"}))
    adapted = {name for name, module in network.layers[0].linears.items() if module.lora_a is not None}
    assert {"q_proj", "shared_expert.down_proj", "shared_expert_gate"} <= adapted
    assert not adapted & {"gate", "experts.gate_up_proj"}


def test_a_window_narrower_than_the_text_costs_a_mask_and_repeated_keys():
    narrow, wide = case("mistral windowed"), case("mistral")
    assert peak(narrow) > peak(wide)
    shorter = {"seq_len": 64}
    assert peak(replace(narrow, **shorter)) == peak(replace(wide, **shorter))


def test_fewer_layers_of_a_windowed_model_are_windowed_alike():
    arch = replace(architecture_of(config_of("mistral windowed")), layers=2)
    assert (arch.global_layers, arch.windowed_layers) == (0, (0, 1, 2))
    shallow = replace(case("mistral windowed"), architecture=arch)
    masks = [planner.training.TrainingRun(shallow).play().peak_components().get("attention mask", 0)]
    assert masks == [2 * 2 * 256 * 256 * 2]  # a bias in bf16 for each of two blocks and two sequences


def test_latent_attention_copies_its_output_where_cudnn_runs_it():
    hopper, ampere = (
        planned_figures(case("deepseek_v2", gpu=gpu)).forward_end_bytes for gpu in ("h200", "a100-80gb")
    )
    a_layer = 2 * 256 * 4 * 32 * 2  # tokens x heads x width of values, in bf16
    assert hopper - ampere == 3 * a_layer


def test_sdpa_where_transformers_has_none_is_said():
    for family, said in {"gemma2": True, "bloom": True, "llama": False}.items():
        notes = planner.forecast_training(case(family)).notes
        assert any("no sdpa" in note for note in notes) is said
    assert not any("no sdpa" in n for n in planner.forecast_training(case("gemma2", attention="eager")).notes)


# ---- Against the real code of transformers


@pytest.mark.engine
@pytest.mark.parametrize(
    ("family", "mode"),
    [
        ("llama", "full"),
        ("llama", "lora padded ckpt"),
        ("phi3", "full eager"),
        ("gemma3_text windowed", "lora"),
        ("qwen2_moe", "full"),
        ("falcon", "full padded"),
        ("cohere norm", "full ckpt"),
        ("gpt_neox", "full fp32"),
        ("deepseek_v3", "full"),
        ("qwen3", "freeze ckpt"),
        ("gpt2", "lora dropout"),
    ],
)
def test_the_bookkeeping_agrees_with_transformers(family, mode):
    pytest.importorskip("transformers", minversion="5.20")
    from benchmarks.trace_check.compare import TOLERANCE, compare

    both = compare(family, mode)
    assert both is not None
    planned, traced = both
    errors = planned.errors(traced)
    assert errors["parameters"] == errors["weight_bytes"] == 0
    assert max(map(abs, errors.values())) <= TOLERANCE


@pytest.mark.engine
def test_which_families_have_sdpa_is_what_transformers_says():
    pytest.importorskip("transformers", minversion="5.20")
    from benchmarks.trace_check.traced import supports

    for name in CONFIGS:
        config = config_of(name)
        assert architecture_of(config).sdpa == supports(config, "sdpa"), name


@pytest.mark.engine
def test_a_tensor_forgotten_by_the_planner_is_found(monkeypatch):
    pytest.importorskip("transformers", minversion="5.20")
    from benchmarks.trace_check.compare import TOLERANCE, compare

    def forgets_its_input(tape, x):
        return ops.elementwise(tape, [x])

    monkeypatch.setattr(feed_forward.ops, "activation", forgets_its_input)
    both = compare("llama", "full")
    assert both is not None
    assert both[0].errors(both[1])["forward_end_bytes"] < -TOLERANCE


@pytest.mark.engine
@pytest.mark.parametrize(("planned_bytes", "code"), [(1_005, 0), (1_020, 1), (980, 1)])
def test_the_exit_code_tells_whether_a_figure_is_off(monkeypatch, capsys, planned_bytes, code):
    pytest.importorskip("transformers", minversion="5.20")
    from benchmarks.trace_check import __main__ as command
    from benchmarks.trace_check.figures import Figures

    both = (Figures(1, 1, 1_000, 1_000, planned_bytes), Figures(1, 1, 1_000, 1_000, 1_000))
    monkeypatch.setattr(command, "compare", lambda family, mode: both)
    monkeypatch.setattr(command.sys, "argv", ["trace_check", "llama", "--mode", "full"])
    assert command.main() == code
    assert "1 comparisons" in capsys.readouterr().out
