"""Reads a case for the simulation: transformers' own configuration, and families that no formula knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.architecture.families import architecture_of
from planner.architecture.spec import Architecture
from planner.errors import CaseError, did_you_mean
from planner.forecasting import is_unknown
from planner.parsing import parse_training_case
from planner.training_case import TrainingCase

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
OWN_CODE = "auto_map"
"""Key of config.json that names code which came with the model."""


def read_case(
    content: Mapping[str, Any], *, folder: Path | None = None, trust: bool = False
) -> tuple[TrainingCase, Any]:
    """Return a case and transformers' configuration of its model.

    Args:
        content: in the case format.
        folder: of the model, where it may have brought code of its own.
        trust: whether that code may be run.

    Raises:
        CaseError: for a family that transformers does not know either, and for what is wrong with the case.
    """
    given = content.get("hf_config")
    if not isinstance(given, Mapping):
        raise CaseError("hf_config must be a mapping: the model's config.json")
    own = bool(given.get(OWN_CODE)) and folder is not None
    config = _own_config(folder) if own and trust else transformers_config(dict(given))

    def architecture(case: Mapping[str, Any]) -> Architecture:
        return unverified_architecture(config) if is_unknown(case) else architecture_of(case["hf_config"])

    return parse_training_case(content, architecture=architecture), config


def transformers_config(given: dict[str, Any]) -> Any:
    """Return transformers' configuration of a language model.

    Raises:
        CaseError: for a family that this transformers does not know, and for what it refuses.
    """
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    name = str(given.pop("model_type", ""))
    if given.get(OWN_CODE) and name not in CONFIG_MAPPING:
        raise CaseError(
            f"model_type {name!r} is code that came with the model; "
            "model.trust_remote_code=true runs it, once you have read it"
        )
    if name not in CONFIG_MAPPING or name not in CAUSAL:
        near = did_you_mean(name, CAUSAL).partition(" Known:")[0].partition("Known:")[0]
        raise CaseError(f"model_type {name!r}: this transformers has no such language model. {near}".strip())
    given.pop("architectures", None)
    try:
        config = AutoConfig.for_model(name, **given)
    except Exception as error:  # each family checks its own keys, with errors of its own
        said = " ".join(str(error).split()) or type(error).__name__
        raise CaseError(f"hf_config of {name}: {said}") from error
    _check_sizes(config.get_text_config())
    config.use_cache = False
    return config


def _check_sizes(config: Any) -> None:
    """Raises CaseError for sizes that are none; transformers takes a model of minus two layers."""
    for key in SIZES:
        value = getattr(config, key, 1)
        if isinstance(value, int) and value < 1:
            raise CaseError(f"hf_config: {key} is {value}; it must be above 0")


def _own_config(folder: Path) -> Any:
    """Read the configuration by the code that came with the model; whoever calls this trusts it."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    except Exception as error:  # whatever that code raises
        raise CaseError(f"the model's own code: {str(error).strip().splitlines()[0]}") from error
    config.use_cache = False
    return config


def unverified_architecture(config: Any) -> Architecture:
    """What the planner asks of an architecture beside its graph, which the simulation finds out by itself."""
    text = config.get_text_config()

    def number(name: str, otherwise: int = 1) -> int:
        value = getattr(text, name, None)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise

    heads, hidden = number("num_attention_heads"), number("hidden_size")
    return Architecture(
        model_type=config.model_type,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", max(hidden // heads, 1)),
        ffn=number("intermediate_size"),
        vocab=number("vocab_size"),
        tied=bool(getattr(text, "tie_word_embeddings", False)),
    )
