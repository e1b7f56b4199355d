"""bitsandbytes' optimizers on shapes.

Source: bitsandbytes 0.50 `optim/optimizer.py: Optimizer2State.init_state`, `get_state_buffer`; the sizes are
those of `data/optimizers.yaml`. A step changes values in place and allocates nothing but states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from planner.optimizers import PAGED_FROM, optimizer

BITSANDBYTES = ("adamw_8bit", "paged_adamw_8bit", "paged_adamw")


class ShapedOptimizer(torch.optim.Optimizer):
    """Makes the states of a row of `data/optimizers.yaml` at a tensor's first step.

    Args:
        parameters: what is stepped.
        name: of the row.
        elsewhere: tells the recorder that what is made meanwhile is no memory of torch's allocator.
    """

    def __init__(
        self, parameters: Iterable[Any], name: str, elsewhere: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(parameters, {"lr": 1e-4})
        self._row, self._elsewhere = optimizer(name), elsewhere

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the states that are not there yet."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self._start(parameter)
        return loss

    def _start(self, parameter: torch.Tensor) -> None:
        """State proper first, its scales after it; large paged state lies in unified memory."""
        state, row = self.state[parameter], self._row
        paged = row.paged and parameter.numel() >= PAGED_FROM
        for number, nbytes in enumerate(row.state_parts(tuple(parameter.shape), parameter.element_size())):
            with self._elsewhere() if paged and number < len(row.state_bytes) else nullcontext():
                state[f"state{number}"] = torch.empty(nbytes, dtype=torch.uint8, device=parameter.device)
