"""Puts Liger's kernels into a model that has been built, family by family.

Source: liger-kernel 0.8.5 `transformers/monkey_patch.py`, `swiglu.py`, `model/llama.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from types import MethodType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from planner.liger import EXPERTS, FUSED_LOSS, LIGER_FAMILIES, LigerFamily
from planner.simulate.shaped.liger import IGNORED, fused_loss, gated, normalised, plain_loss, turned
from planner.simulate.shaped.liger_experts import Tuned, replace_experts
from planner.tables import gpu
from planner.training_case import TrainingCase

CODE = {"gemma3_text": "gemma3"}
"""Families whose code lies under another name."""


def apply_kernels(case: TrainingCase, model: Any) -> None:
    """Put the kernels that a case asks for into a model; `patched` replaces functions besides."""
    family = LIGER_FAMILIES[case.architecture.model_type]
    tuned, parts = Tuned(), gpu(case.device).multiprocessors
    if case.fuses("rms_norm"):
        _normalise(model.model.norm, in_place=family.last_in_place, parts=parts)
    for block in model.model.layers:
        if case.fuses("rms_norm"):
            for name in family.norms:
                norm = attrgetter(name)(block)
                if norm is not None:  # DeepSeek may project queries whole
                    _normalise(norm, in_place=family.in_place, parts=parts)
        if case.fuses("swiglu") or family.always_activates:
            _activate(block.mlp, family, tuned)
    if case.fuses("fused_linear_cross_entropy") and family.loss == FUSED_LOSS:
        model.forward = MethodType(_model_forward, model)


def _normalise(norm: Any, *, in_place: bool, parts: int) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return normalised(x, self.weight, in_place, parts)

    norm.forward = MethodType(forward, norm)


def _activate(mlp: Any, family: LigerFamily, tuned: Tuned) -> None:
    if family.feed_forward != EXPERTS or not hasattr(mlp, "experts"):
        fused = hasattr(mlp, "gate_up_proj")
        mlp.forward = MethodType(_fused_forward if fused else _gated_forward, mlp)
        return
    replace_experts(mlp.experts, tuned)
    if getattr(mlp, "shared_experts", None) is not None:
        mlp.shared_experts.forward = MethodType(_gated_forward, mlp.shared_experts)


def _gated_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))


def _fused_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    """The names of both halves hold the whole until the last product is made."""
    up = self.gate_up_proj(x)
    gate, up = up.chunk(2, dim=-1)
    return self.down_proj(gated(gate, up))


def _model_forward(self: Any, input_ids: Any = None, labels: Any = None, **others: Any) -> Any:
    """A causal language model that is trained: its logits are never there."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    outputs = self.model(input_ids=input_ids, **others)
    hidden = outputs[0][:, slice(0, None), :]
    shifted = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    loss = fused_loss(hidden.view(-1, hidden.shape[-1]), self.lm_head.weight, shifted.view(-1))
    return CausalLMOutputWithPast(loss=loss, past_key_values=outputs.past_key_values)


@contextmanager
def patched(case: TrainingCase) -> Iterator[None]:
    """Let a family's own code call Liger's rotary function and loss, where a case asks for them."""
    family = LIGER_FAMILIES.get(case.architecture.model_type)
    with ExitStack() as stack:
        if case.liger and family is not None:
            for patch in _patches(case, family):
                stack.enter_context(patch)
        yield


def _patches(case: TrainingCase, family: LigerFamily) -> Iterator[Any]:
    if case.fuses("rope") and family.rotary:
        name = CODE.get(case.architecture.model_type, case.architecture.model_type)
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        yield mock.patch.object(module, "apply_rotary_pos_emb", _rotary)
    if family.loss != FUSED_LOSS:
        yield mock.patch.object(F, "cross_entropy", _cross_entropy)


def _rotary(q: Any, k: Any, cos: Any, sin: Any, **_: Any) -> Any:
    return turned(q, k, cos, sin)


def _cross_entropy(logits: torch.Tensor, target: torch.Tensor, **_: Any) -> torch.Tensor:
    return plain_loss(logits, target)
