"""Arithmetic of a training step, for the model FLOPs utilisation (MFU) of real runs.

Counted is what the mathematics needs, not what is executed: no recomputed block, no padding. (What is
executed depends on the kernels that PyTorch picks at run time, so no hardware utilisation is given.) The
convention is that of PaLM, appendix B (https://arxiv.org/abs/2204.02311): two FLOPs a weight and token
forwards, and as many again for each gradient. Two differences make our figure smaller: frozen weights have no
gradient of their own, so that LoRA counts 4 N and not 6 N for them, and causal attention counts the half that
is not masked. Input embeddings do no arithmetic; of experts only those that a token passes count.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from planner.grid.counts import counts_of
from planner.tables import CPU, card_of, gpu
from planner.training_case import TrainingCase

FORWARD = 2  # a product and a sum for each weight
SCORES = 4  # queries by keys and weights by values, two FLOPs each
PASSES = 3  # forward, and two gradients for each product of forward
CAUSAL = 0.5


@dataclass(frozen=True)
class Work:
    """FLOPs of a step = `flops_per_token` x tokens + `flops_per_pair` x sum of squared sequence lengths.

    `peak_flops_per_s` is that of one GPU in the compute type, dense; None where the table has none (CPU,
    fp32).
    """

    flops_per_token: float
    flops_per_pair: float
    peak_flops_per_s: float | None
    gpu: str
    compute_capability: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def work_of(case: TrainingCase) -> Work:
    """Count the arithmetic of a training job."""
    counts, arch = counts_of(case), case.architecture
    blocks = FORWARD * (2 * counts.multiplied + counts.multiplied_trained)
    head = FORWARD * counts.head * (3 if counts.head_trained else 2)
    card = card_of(case.device)
    return Work(
        flops_per_token=float(blocks + head),
        flops_per_pair=SCORES * CAUSAL * PASSES * arch.q_width * arch.layers,
        peak_flops_per_s=_peak(case),
        gpu="" if card is None else card.title,
        compute_capability="" if card is None else card.compute_capability,
    )


def _peak(case: TrainingCase) -> float | None:
    if case.device == CPU:
        return None
    card = gpu(case.device)
    tflops = {"fp16": card.fp16_tflops, "bf16": card.bf16_tflops}.get(case.dtype)
    return None if tflops is None else tflops * 1e12
