"""From a Hugging Face `config.json` to an `Architecture`: one function per family, one registry.

Defaults are those of transformers 5.17-5.24. A family that is not here is refused, not guessed.
"""

from __future__ import annotations

from planner.architecture.families import decoders, google, gpt, mixtures
from planner.architecture.families.reading import MOST_LAYERS, Config, Reader
from planner.architecture.spec import Architecture
from planner.errors import CaseError, did_you_mean

FAMILIES: dict[str, Reader] = {**decoders.FAMILIES, **google.FAMILIES, **gpt.FAMILIES, **mixtures.FAMILIES}
_USUAL_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def architecture_of(config: Config) -> Architecture:
    """Read a Hugging Face configuration.

    Raises:
        CaseError: for a family that is not known, or a key that is missing or absurd.
    """
    if not config.get("model_type"):
        raise CaseError(f"hf_config has no model_type. {did_you_mean('', FAMILIES)}")
    family = str(config["model_type"])
    reader = FAMILIES.get(family)
    if reader is None:
        raise CaseError(
            f"model_type {family!r} is not known to the formula tier. {did_you_mean(family, FAMILIES)}"
            f"{_unreadable(config)} --tier simulate runs the real code of such a model on shapes"
        )
    found = reader(config)
    if found.layers > MOST_LAYERS:
        raise CaseError(f"the model has {found.layers} layers; forecasts go up to {MOST_LAYERS}")
    return found


def _unreadable(config: Config) -> str:
    missing = [key for key in _USUAL_KEYS if key not in config]
    return f" Its hf_config also lacks {', '.join(missing)}." if missing else ""
