"""What Liger replaces in each family when it is given a model that is there already.

Source: liger-kernel 0.8.5 `transformers/monkey_patch.py: _apply_liger_kernel_to_instance` and the functions
of its table. Modules that it names are changed one by one; a class that it replaces besides changes nothing
in a model that has been built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.training_case import TrainingCase

FUSED_LOSS, PLAIN_LOSS = "fused", "plain"
GATED, EXPERTS = "gated", "experts"


@dataclass(frozen=True)
class LigerFamily:
    """One family."""

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Names of the norms inside a block; the last norm of the model is always one."""
    in_place: bool = True
    """Whether those of the blocks write the input's gradient over that of the output."""
    last_in_place: bool = True
    feed_forward: str = GATED
    """What the activation kernel stands in: a gated part, or all experts of a block at once."""
    always_activates: bool = False
    """The activation is called GeGLU, which a choice of kernels by the names of Llama's does not turn off."""
    rotary: bool = True
    loss: str = FUSED_LOSS
    """Granite scales its logits: there the loss alone is a kernel."""
    refuses: tuple[str, ...] = ()
    """Kernels that it raises an error for when they are asked for by name."""


_LLAMA = LigerFamily()
_HEADS = ("self_attn.q_norm", "self_attn.k_norm")
_FOUR = (*_LLAMA.norms, "pre_feedforward_layernorm", "post_feedforward_layernorm")
_GEMMA = replace(_LLAMA, always_activates=True)
_OLMO = replace(_LLAMA, norms=("post_attention_layernorm", "post_feedforward_layernorm"), in_place=False)
_LATENT = ("self_attn.q_a_layernorm", "self_attn.kv_a_layernorm")
_DEEPSEEK = replace(_LLAMA, norms=(*_LLAMA.norms, *_LATENT), feed_forward=EXPERTS, rotary=False)

LIGER_FAMILIES: dict[str, LigerFamily] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral": _LLAMA,
    "qwen2": _LLAMA,
    "smollm3": _LLAMA,
    "phi3": _LLAMA,
    "granite": replace(_LLAMA, loss=PLAIN_LOSS, refuses=("fused_linear_cross_entropy",)),
    "qwen3": replace(_LLAMA, norms=(*_LLAMA.norms, *_HEADS)),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms=_FOUR, in_place=False, last_in_place=False),
    "gemma3_text": replace(_GEMMA, norms=(*_FOUR, *_HEADS), in_place=False, last_in_place=False),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "glm4": replace(
        _LLAMA,
        norms=(*_LLAMA.norms, "post_self_attn_layernorm", "post_mlp_layernorm"),
        in_place=False,
        last_in_place=False,
        rotary=False,
        refuses=("rope",),
    ),
    "mixtral": replace(_LLAMA, feed_forward=EXPERTS),
    "qwen3_moe": replace(_LLAMA, norms=(*_LLAMA.norms, *_HEADS), feed_forward=EXPERTS),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
}
"""Families whose forecasts know Liger; its table has others, with images or of other kinds."""


def liger_family(case: TrainingCase) -> LigerFamily | None:
    """What Liger replaces in the model of a case; None where the case is without it."""
    return LIGER_FAMILIES.get(case.architecture.model_type) if case.liger else None


def fuses_loss(case: TrainingCase) -> bool:
    """Whether logits are made and used a chunk at a time."""
    family = liger_family(case)
    return family is not None and family.loss == FUSED_LOSS and case.fuses("fused_linear_cross_entropy")


def liger_problems(model_type: str, kernels: Sequence[str] | None) -> list[str]:
    """What is wrong with asking for Liger in a family.

    Args:
        model_type: the family.
        kernels: those that are asked for by name; None: what Liger does by itself.
    """
    family = LIGER_FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(LIGER_FAMILIES)
        return [f"liger: no kernels are known for {model_type}; leave it out. Known: {known}"]
    return [
        f"liger_kernels has {name!r}, which Liger has not got for {model_type}; leave it out"
        for name in kernels or ()
        if name in family.refuses
    ]
