"""States of the random generators as JSON: Python, NumPy, torch on the host and on this rank's GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any


def capture(device: Any) -> dict[str, Any]:
    """Return the states of this process."""
    import numpy
    import torch

    version, numbers, gauss = random.getstate()
    name, keys, *rest = numpy.random.get_state()
    states = {
        "python": [version, list(numbers), gauss],
        "numpy": [name, keys.tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return states


def restore(states: Mapping[str, Any], device: Any) -> None:
    """Put the generators back to where `capture` found them."""
    import numpy
    import torch

    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = states["numpy"]
    numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(_bytes(states["torch"]))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(_bytes(states["cuda"]), device)


def _bytes(text: str) -> Any:
    import torch

    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
