"""The order in which transformers registers the modules of a block: what decides which of them a rank owns.

Source: `__init__` of each class in transformers 5.17-5.23; held against the real models in
`tests/integration/test_registration.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planner.architecture.spec import Architecture
from planner.network.modules import inner_norms, norm_names

FIRST, SECOND = "input_layernorm", "post_attention_layernorm"
IN_FLOW = ("gpt2", "gpt_bigcode", "bloom")  # each norm stands before what it normalises
NORMS_FIRST = ("gpt_neox",)
NORM_BETWEEN = FINAL_NORM_FIRST = ("opt",)
EXPERTS_FIRST = ("qwen3_moe", "deepseek_v2", "deepseek_v3")
ROUTER, STACKED = "gate", ("experts.gate_up_proj", "experts.down_proj")
LOW_RANK = {"q_a_layernorm": "q_a_proj", "kv_a_layernorm": "kv_a_proj_with_mqa"}


def registered(arch: Architecture, linears: Collection[str]) -> tuple[str, ...]:
    """Names of the modules of one block, of which `linears` are no norms, in the order of registration."""
    after = list(linears).index(arch.out_name) + 1 if not arch.fused_qkv else 2
    names = list(linears)
    attention = list(_attention(arch, names[:after]))
    fed = _feed_forward(arch, names[after:])
    norms = list(norm_names(arch))
    if arch.model_type in IN_FLOW:
        return (FIRST, *attention, SECOND, *fed)
    if arch.model_type in NORMS_FIRST:
        return (*norms, *attention, *fed)
    if arch.model_type in NORM_BETWEEN:
        return (*attention, FIRST, *fed, SECOND)
    return (*attention, *fed, *norms)


def _attention(arch: Architecture, linears: list[str]) -> Iterator[str]:
    inner = list(inner_norms(arch))
    for name in linears:
        yield name
        yield from (norm for norm in inner if LOW_RANK.get(norm) == name)
    yield from (norm for norm in inner if norm not in LOW_RANK)


def _feed_forward(arch: Architecture, linears: list[str]) -> list[str]:
    """Router and experts come before what every token sees."""
    mixed = [ROUTER, *STACKED]
    if arch.model_type in EXPERTS_FIRST:
        mixed = [*STACKED, ROUTER]
    return [n for n in mixed if n in linears] + [n for n in linears if n not in mixed]
