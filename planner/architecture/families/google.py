"""Gemma 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from planner.architecture.families.reading import Config, Reader, decoder, size, window, windowed
from planner.architecture.spec import Architecture, Block, Norm
from planner.errors import CaseError


def _gemma(config: Config, **more: Any) -> Architecture:
    base = {"head_dim": 256, **config}
    return decoder(base, tied=True, norm=Norm.rms_fp32, scaled_embedding=True, **more)


def _gemma2(config: Config) -> Architecture:
    return _gemma(
        {"num_key_value_heads": 4, **config},
        block=Block.sandwich,
        sdpa=False,
        attention_softcap=config.get("attn_logit_softcapping", 50.0) is not None,
        logit_softcap=config.get("final_logit_softcapping", 30.0) is not None,
        sliding_window=window(config, 4096),
        windowed_layers=windowed(config, 2),
    )


def _gemma3(config: Config) -> Architecture:
    pattern = next((k for k in ("sliding_window_pattern", "_sliding_window_pattern") if k in config), "")
    return _gemma(
        {"num_key_value_heads": 4, **config},
        block=Block.sandwich,
        qk_norm=True,
        rotary_per_kind=True,
        logit_softcap=config.get("final_logit_softcapping") is not None,
        sliding_window=window(config, 4096),
        windowed_layers=windowed(config, size(config, pattern) if pattern else 6),
    )


def _gemma3_with_images(config: Config) -> Architecture:
    """Gemma 3 from 4B up: a vision tower beside the text model, which the planner does not know."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise CaseError("hf_config has no text_config, which a gemma3 model needs")
    given = cast("Mapping[str, Any]", text)
    if config.get("vision_config") is not None:
        raise CaseError(
            "model_type 'gemma3' has a vision_config: its image tower is not supported. "
            "To train on text alone, load Gemma3ForCausalLM and give its text_config (model_type gemma3_text)"
        )
    return _gemma3({**given, "model_type": "gemma3_text"})


FAMILIES: dict[str, Reader] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3": _gemma3_with_images,
}
