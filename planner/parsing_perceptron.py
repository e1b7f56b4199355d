"""Reads the shape of a perceptron (`kind: mlp`), and refuses the keys that mean nothing to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from planner.architecture.spec import Architecture
from planner.errors import CaseError

MLP = "mlp"
MOST_WIDTH = 1 << 20
FOREIGN = (
    "hf_config",
    "lora",
    "quantization",
    "freeze",
    "fsdp",
    "checkpointing",
    "gradient_checkpointing",
    "liger",
    "liger_kernels",
    "loss",
    "attention",
    "attention_code",
    "seq_len",
    "sequence_parallel",
    "padded",
    "packed",
    "outputs_kept",
)


def is_perceptron(case: Mapping[str, Any]) -> bool:
    """Whether a case trains a perceptron."""
    return case.get("kind") == MLP


def perceptron_architecture(case: Mapping[str, Any]) -> Architecture:
    """The shape of the layers of a case.

    Raises:
        CaseError: when `layers` is no list of widths.
    """
    given = case.get("layers")
    widths = tuple(cast("list[Any]", given)) if isinstance(given, (list, tuple)) else ()
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MOST_WIDTH for n in widths)
    if len(widths) < 2 or not whole:
        raise CaseError(
            f"layers is {given!r}; it must be a list of at least two widths, inputs first and classes last, "
            f"each from 1 to {MOST_WIDTH}"
        )
    return Architecture(
        model_type=MLP,
        layers=len(widths) - 1,
        hidden=widths[0],
        heads=1,
        kv_heads=1,
        head_dim=1,
        ffn=0,
        vocab=widths[-1],
        tied=False,
        widths=widths,
    )


def perceptron_problems(case: Mapping[str, Any]) -> list[str]:
    """What a case says that a perceptron, or only a perceptron, has."""
    if not is_perceptron(case):
        return ["layers belongs to kind mlp; a language model has hf_config"] if "layers" in case else []
    problems = [f"{key} means nothing to kind mlp" for key in FOREIGN if case.get(key)]
    if case.get("method", "full") != "full":
        problems.append(f"method is {case['method']!r}; kind mlp trains every weight: full")
    if case.get("engine", "deepspeed") == "fsdp2":
        problems.append("engine fsdp2 shards transformer blocks; kind mlp has none")
    return problems
