"""Watch that training does what it claims to: every trainable weight learns."""

from __future__ import annotations

import re
from typing import Any

from llmsys_exp.errors import JobError

SHOWN = 5
SINGLE_EXPERT = re.compile(r"\.experts\.\d+\.")


class GradientCheck:
    """Notes which trainable parameters get a gradient in the first step.

    A hook fires on the rank's own backward pass before ZeRO reduces or drops the gradient, so it works alike
    at every stage. That it fires is all that counts: the gradient of a new adapter's first matrix is exactly
    zero in step 1, as the second one is.
    """

    def __init__(self, model: Any) -> None:
        # a single expert that no token was sent to rightly gets none; experts in one tensor always get theirs
        watched = {
            name: weight
            for name, weight in model.named_parameters()
            if weight.requires_grad and not SINGLE_EXPERT.search(name)
        }
        self._waiting = set(watched)
        self._hooks = [
            weight.register_post_accumulate_grad_hook(lambda _, name=name: self._waiting.discard(name))
            for name, weight in watched.items()
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
