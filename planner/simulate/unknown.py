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

MOST = 10_000_000
SIZES = {
    "num_hidden_layers": 2000,
    **dict.fromkeys(("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"), MOST),
    **dict.fromkeys(("vocab_size", "intermediate_size"), MOST),
}
"""Sizes and the most that is taken for meant."""
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
DECODERS = ("gpt_neox", "gpt_neox_japanese")
"""Models that look back alone, whatever `is_decoder` of their configuration says."""
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
    own = trust and bool(given.get(OWN_CODE)) and folder is not None
    config = _own_config(folder) if own else transformers_config(dict(given))

    def architecture(case: Mapping[str, Any]) -> Architecture:
        return unverified_architecture(config) if is_unknown(case) else architecture_of(case["hf_config"])

    case = parse_training_case(content, architecture=architecture)
    if not own:
        check_attention(config, case.attention)
    return case, config


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
    _check_sizes(given)
    try:
        config = AutoConfig.for_model(name, **given)
    except Exception as error:  # each family checks its own keys, with errors of its own
        said = " ".join(str(error).split()) or type(error).__name__
        raise CaseError(f"hf_config of {name}: {said}") from error
    _check_decoder(config)
    _check_sizes(vars(config.get_text_config()))
    _check_activations(config.get_text_config())
    config.use_cache = False
    return config


def check_attention(config: Any, attention: str) -> None:
    """Refuse an attention that transformers' code of a model does not have.

    Raises:
        CaseError: naming what it has.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM._model_mapping[type(config)]
    if attention == "sdpa" and not model._supports_sdpa:
        raise CaseError(
            f"attention: {config.model_type} has no sdpa in this transformers; eager is what it has"
        )


def _check_decoder(config: Any) -> None:
    """Raises CaseError for a model that sees what comes after a token, or that has an encoder beside it."""
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise CaseError(f"hf_config of {name}: it has an encoder beside its decoder; give a decoder alone")
    if getattr(config, "is_decoder", True) or name in DECODERS:
        return
    raise CaseError(
        f"hf_config of {name}: is_decoder is not true, so it also sees what comes after a token and is no "
        "causal language model; set is_decoder to true in its config.json if it was trained as one"
    )


def _check_activations(config: Any) -> None:
    """Raises CaseError for the name of an activation that transformers does not have."""
    from transformers.activations import ACT2FN

    for key in ACTIVATIONS:
        name = getattr(config, key, None)
        if isinstance(name, str) and name not in ACT2FN:
            raise CaseError(f"hf_config: {key} {name!r} is no activation. {did_you_mean(name, ACT2FN)}")


def _check_sizes(sizes: Mapping[str, Any]) -> None:
    """Raises CaseError for sizes that are none; transformers takes a model of minus two layers."""
    for key, most in SIZES.items():
        value = sizes.get(key)
        if isinstance(value, (int, float)) and not 1 <= value <= most:
            raise CaseError(f"hf_config: {key} is {value}; it must lie between 1 and {most:,}")
    heads, groups = sizes.get("num_attention_heads"), sizes.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise CaseError(
            f"hf_config: num_attention_heads is {heads}, no multiple of num_key_value_heads, {groups}"
        )


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
