"""`training.deterministic`: operators that give the same bits again on one machine, or say that they cannot.

What is read before CUDA starts is set by whoever starts the worker (`launch.environment.DETERMINISTIC`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from llmsys_exp.errors import UserError
from llmsys_exp.launch.environment import DETERMINISTIC

_REFUSAL = "does not have a deterministic implementation"


def be_deterministic() -> None:
    """Have torch take deterministic operators only; call it before a device is used."""
    import torch

    for name, value in DETERMINISTIC.items():
        os.environ.setdefault(name, value)  # of a worker that was started by hand
    torch.use_deterministic_algorithms(True)
    # it would fill every new tensor with NaN, DeepSpeed's buffers included, at a cost and to no end here
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turn torch's refusal of an operator into what the user can change."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if _REFUSAL not in text:
            raise
        raise UserError(
            f"{text.split(maxsplit=1)[0]} {_REFUSAL}",
            where="training.deterministic=true",
            why="An operator of this model adds numbers up in whatever order they come",
            do="Set training.deterministic=false, or choose another training.attention or optimizer",
        ) from error
