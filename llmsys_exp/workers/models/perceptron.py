"""A perceptron for images, the small network of DeepSpeed's first example."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn import functional

HALF_BRIGHTEST = 127.5


class Perceptron(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, widths: Sequence[int]) -> None:
        """Build the layers; `widths` are those of inputs, hidden layers and classes."""
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, pixels: Any, labels: Any = None, targets: float = 1.0) -> Any:
        """Return the sum of the images' losses over `targets`, or the scores of the classes without labels.

        Args:
            pixels: a byte each, [images, inputs].
            labels: the class of each image.
            targets: what the sum is divided by.
        """
        kept = self.layers[0].weight.dtype
        # in place: one copy of the images in the compute type, from -1 to 1
        scores = self.layers(pixels.to(kept).div_(HALF_BRIGHTEST).sub_(1.0))
        if labels is None:
            return scores
        return functional.cross_entropy(scores.float(), labels, reduction="sum") / targets
