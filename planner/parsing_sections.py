"""Reads the sections of a case that say how the base is quantised and how FSDP shards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from planner.errors import CaseError, did_you_mean
from planner.training_case import Fsdp, Quantization

KEPT_INPUTS_BEFORE = (0, 43, 2)
"""bitsandbytes 0.43.2 (23 July 2024, its pull request 1270) stopped `MatMul4Bit` from keeping `(A, B)` in
`ctx.tensors` (`autograd/_functions.py`)."""
_DTYPES = ("bf16", "fp16", "fp32")
_FLAGS = ("double_quant", "prepare_for_kbit_training", "head")
_BNB_ONLY = ("quant_type", "double_quant", "bnb_version", "unpacked_dtype")


def section(case: Mapping[str, Any], key: str, valid: tuple[str, ...]) -> Mapping[str, Any] | None:
    """A mapping inside a case, its keys checked; None where there is none."""
    given = case.get(key)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CaseError(f"{key} must be a mapping")
    content = cast("Mapping[str, Any]", given)
    for name in content:
        if name not in valid:
            raise CaseError(f"unknown key {key}.{name}. {did_you_mean(str(name), valid)}")
    return content


def quantization_settings(case: Mapping[str, Any]) -> Quantization | None:
    """How the base is quantised.

    Raises:
        CaseError: naming every value that is not known.
    """
    valid = ("kind", "bits", "group_size", "quant_type", *_FLAGS, "bnb_version", "unpacked_dtype")
    given = section(case, "quantization", valid)
    if given is None:
        return None
    problems = [*_wrong_choices(given), *_wrong_flags(given, "quantization", _FLAGS)]
    if problems:
        raise CaseError(*problems)
    settings = {key: value for key, value in given.items() if key != "bnb_version"}
    return Quantization(**settings, keeps_inputs=_keeps_inputs(given))


def _wrong_choices(given: Mapping[str, Any]) -> list[str]:
    gptq = given.get("kind") == "gptq"
    known = {
        "kind": ("bnb", "gptq"),
        "bits": (2, 3, 4, 8) if gptq else (4, 8),
        "group_size": (-1, 32, 64, 128),
        "quant_type": ("nf4", "fp4"),
        "unpacked_dtype": _DTYPES,
    }
    problems = [
        f"quantization.{key} is {given[key]!r}; known: {', '.join(map(str, values))}"
        for key, values in known.items()
        if key in given and (given[key] not in values or isinstance(given[key], (float, bool)))
    ]
    if gptq:
        problems += [
            f"quantization.{key} is of bitsandbytes; kind gptq has none"
            for key in _BNB_ONLY
            if given.get(key)
        ]
    return problems


def _wrong_flags(given: Mapping[str, Any], where: str, flags: tuple[str, ...]) -> list[str]:
    return [
        f"{where}.{key} is {given[key]!r}; it must be true or false"
        for key in flags
        if not isinstance(given.get(key, False), bool)
    ]


def _keeps_inputs(given: Mapping[str, Any]) -> bool:
    """8-bit products keep their input in every release; 4-bit ones did before 0.43.2."""
    if given.get("kind") == "gptq":
        return False
    version = given.get("bnb_version")
    if version is None:
        return given.get("bits", 4) == 8
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if found is None:
        raise CaseError(f"quantization.bnb_version is {version!r}; write it as 0.43.1, in quotes")
    old = tuple(map(int, found.groups())) < KEPT_INPUTS_BEFORE
    return old or given.get("bits", 4) == 8


def fsdp_settings(case: Mapping[str, Any]) -> Fsdp:
    """How torch's `fully_shard` is called.

    Raises:
        CaseError: naming the first value that is not known.
    """
    flags = ("fp32_params", "reshard_after_forward", "sync_each_batch", "foreach")
    given = section(case, "fsdp", (*flags, "reduce_dtype"))
    if given is None:
        return Fsdp()
    problems = _wrong_flags(given, "fsdp", flags)
    reduce_dtype = given.get("reduce_dtype")
    if reduce_dtype is not None and reduce_dtype not in _DTYPES:
        problems.append(f"fsdp.reduce_dtype is {reduce_dtype!r}. {did_you_mean(str(reduce_dtype), _DTYPES)}")
    if problems:
        raise CaseError(*problems)
    return Fsdp(**given)
