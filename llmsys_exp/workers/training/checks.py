"""Watch that training does what it claims to: every trainable weight learns, and the loss stays a number."""

from __future__ import annotations

import math
from typing import Any

from llmsys_exp.errors import JobError

SHOWN = 5


class GradientCheck:
    """Notes which trainable parameters get a gradient in the first step.

    A hook fires on the rank's own backward pass before ZeRO reduces or drops the gradient, so it works alike
    at every stage.
    """

    def __init__(self, model: Any) -> None:
        self._waiting = {
            name
            for name, weight in model.named_parameters()
            # an expert that no token was sent to rightly gets none
            if weight.requires_grad and "expert" not in name
        }
        self._hooks = [
            weight.register_post_accumulate_grad_hook(lambda _, name=name: self._waiting.discard(name))
            for name, weight in model.named_parameters()
            if name in self._waiting
        ]

    def finish(self, gradient_norm: float | None) -> None:
        """Fail when a parameter got no gradient, or all gradients are zero."""
        for hook in self._hooks:
            hook.remove()
        if self._waiting:
            names = sorted(self._waiting)
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            shown = ", ".join(names[:SHOWN]) + more
            raise JobError(
                f"{len(names)} trainable parameters got no gradient in step 1: {shown}",
                kind="no_gradient",
                do="Check method, gradient_checkpointing and the model's own code",
            )
        if gradient_norm == 0.0:
            raise JobError(
                "All gradients of step 1 are zero",
                kind="no_gradient",
                do="Check that data.max_length leaves room for answers and that the adapters reach the loss",
            )


def check_loss(loss: float, *, step: int) -> None:
    """Fail when the loss is no number any more."""
    if not math.isfinite(loss):
        raise JobError(
            f"The loss became {loss} in step {step}",
            kind="diverged",
            do="Lower training.learning_rate, raise training.warmup_ratio, or use dtype bf16 instead of fp16",
        )
