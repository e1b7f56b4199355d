"""Numbers and words that the types of the settings let through."""

from typing import get_args

import pytest

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.limits import RANGES, WORDS
from llmsys_exp.config.schema import Config
from llmsys_exp.config.tree import settings_tree
from llmsys_exp.errors import ConfigError
from llmsys_exp.plan import resolve
from planner import search

SAID = {
    "hardware.memory_gib=inf": "hardware.memory_gib is inf; it must be above 0 and at most 1,000,000",
    "hardware.in_use_gib=-1": "hardware.in_use_gib is -1.0; it must be 0 to 1,000,000",
    "gate.margin_gib=nan": "gate.margin_gib is nan",
    "training.global_batch=0": "training.global_batch is 0; it must be 1 to",
    "training.micro_batch=0": "training.micro_batch is 0; it must be 1 to 65,536, or auto",
    "training.learning_rate=nan": "training.learning_rate is nan; it must be above 0",
    "method.lora.dropout=1": "method.lora.dropout is 1.0; it must be 0 or more and below 1",
    "data.max_length=10000000": "data.max_length is 10000000",
    "data.score=exactmatch": "data.score is 'exactmatch'.  Did you mean exact_match?",
    "launcher.name=deepsped": "launcher.name is 'deepsped'.  Did you mean deepspeed?",
    "method.lora.targets=[q_porj]": "Did you mean q_proj?",
    "method.lora.targets=[]": "method.lora.targets is empty",
    "method.lora.targets=null": "method.lora.targets is None",
    "hardware=null": "hardware cannot be null (from the command line: hardware=null)",
    "debug=fst": "Did you mean fast?",
    "model.path=${nope}": "Interpolation key 'nope' not found",
    "training.micro_batch=1,2": "To try each value add -m",
}


def refusal(*overrides):
    with pytest.raises(ConfigError) as refused:
        resolve(compose_config(overrides))
    return str(refused.value)


@pytest.mark.parametrize(("override", "said"), SAID.items(), ids=SAID.keys())
def test_refused_with_the_reason(override, said):
    assert said in refusal(override)


def test_all_at_once():
    assert "4 settings need a change" in refusal(
        "seed=-1", "hardware.nodes=0", "training.epochs=-1", "training.attention=flash"
    )


def test_one_problem_stays_one():
    assert "settings need a change" not in refusal("method=freeze", "method.freeze.last_layers=1000")


def test_every_number_has_a_range_and_every_default_lies_in_it():
    leaves = settings_tree().leaves
    numbers = {key for key, hint in leaves.items() if {int, float} & {hint, *get_args(hint)}}
    by_words = {"method.quantization.bits", "export.gptq.bits", "export.gptq.group_size"}
    lists = {"model.layers", "launcher.gpus"}
    assert numbers - set(RANGES) == by_words | lists
    assert (set(RANGES) | set(WORDS)) <= set(leaves)
    from llmsys_exp.config.limits import limit_problems

    assert limit_problems(Config()) == []


def test_a_hopeless_search_looks_at_few_settings(monkeypatch):
    played = []
    play = search.forecast_training
    monkeypatch.setattr(
        search, "forecast_training", lambda case, **more: played.append(case) or play(case, **more)
    )
    plan = resolve(compose_config(["hardware=h100", "hardware.memory_gib=0.5"]))
    assert not plan.verdict.fits
    assert not played  # estimates alone rule all of some 150 combinations out


@pytest.mark.parametrize("setting", ["hardware.memory_gib=1", "hardware.in_use_gib=2"])
def test_memory_of_gpus_is_refused_on_a_cpu(setting):
    with pytest.raises(ConfigError, match="host_memory_gib"):
        resolve(compose_config(["model=gpt2", "hardware=cpu", setting]))
