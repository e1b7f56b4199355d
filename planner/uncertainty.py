"""How far a forecast may be off: the band around each figure, from held-out residuals of its class.

A residual is measured / forecast - 1 of a row whose forecast was frozen before it was measured. The bands
are in `data/residuals.yaml`, which `benchmarks/residuals.py` makes; which class a case has is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from planner.tables import CPU, read_table
from planner.training_case import Method, Quantization, TrainingCase

EIGHT_BITS = 8
DERIVED = "derived, not measured"
UNCOMMON = "uncommon settings"
MIXTURES = "mixtures of experts"
EXPANDABLE = "expandable segments"
STAGE_3 = "stage 3"
STAGE_0_2 = "stage 0-2"
CLASSES = (DERIVED, UNCOMMON, MIXTURES, EXPANDABLE, STAGE_3, STAGE_0_2)
SIMULATED_3, SIMULATED_0_2 = "simulated, stage 3", "simulated, stages 0-2"
SIMULATED_CLASSES = (SIMULATED_3, SIMULATED_0_2)
"""Of the tier `simulate`, which runs code of its own: the formula's errors are not its errors."""
FIGURES = ("peak_allocated", "required", "peak_reserved")

Share = tuple[float, float]


@dataclass(frozen=True)
class Residuals:
    """Bands of one class as shares of the forecast: figure -> (low, high), with low <= 0 <= high.

    `rows` is how many held-out rows of this class there are; few rows widen the band.
    """

    name: str
    rows: int
    shares: dict[str, Share]

    def band_bytes(self, figure: str, forecast_bytes: int) -> tuple[int, int]:
        """The lower and upper end of a figure."""
        low, high = self.shares[figure]
        return int(forecast_bytes * (1 + low)), int(forecast_bytes * (1 + high))


def residual_class(case: TrainingCase) -> str:
    """What drives the error of a case; the first class that applies.

    >>> from planner.parsing import parse_training_case
    >>> from planner.tables import model_config
    >>> case = {"hf_config": model_config("llama2_7b"), "method": "full", "zero_stage": 3}
    >>> residual_class(parse_training_case(case))
    'stage 3'
    """
    if _is_derived(case):
        return DERIVED
    if _is_uncommon(case):
        return UNCOMMON
    if case.architecture.experts is not None:
        return MIXTURES
    if case.expandable_segments:
        return EXPANDABLE
    return STAGE_3 if case.zero_stage == 3 else STAGE_0_2


def _is_derived(case: TrainingCase) -> bool:
    """Settings without one measured row."""
    return (
        case.engine not in ("deepspeed", "plain")
        or case.sequence_parallel > 1
        or "litgpt" in (case.attention_code, case.loss.partition("_")[0])
        or "nvme" in (case.offload_optimizer, case.offload_param)
        or (case.quantization is not None and _is_other_quantization(case.quantization))
        or (case.quantization is not None and case.zero_stage == 3)
        or case.attention == "flash_attention_2"
        or case.device == CPU
        or bool(case.architecture.widths)
    )


def _is_other_quantization(quantization: Quantization) -> bool:
    """Everything but a base quantised by a bitsandbytes of today, output layer excepted."""
    old = quantization.keeps_inputs and quantization.bits != EIGHT_BITS
    return quantization.kind != "bnb" or quantization.head or old


def _is_uncommon(case: TrainingCase) -> bool:
    """Settings whose first forecasts, from the sources alone, were off by much more than the others'."""
    return (
        case.dtype == "fp32"
        or case.zero_stage == 1
        or case.method is Method.freeze
        or case.grad_accum_dtype is not None
        or (case.quantization is not None and case.quantization.bits == EIGHT_BITS)
    )


@cache
def residuals_of(name: str) -> Residuals:
    """The bands of one class."""
    row = read_table("residuals.yaml")["classes"][name]
    shares = {figure: (float(row[figure][0]), float(row[figure][1])) for figure in FIGURES}
    return Residuals(name, int(row["rows"]), shares)


def residuals(case: TrainingCase) -> Residuals:
    """The bands of a case's class."""
    return residuals_of(residual_class(case))


def simulated_residuals(case: TrainingCase) -> Residuals:
    """The bands of a simulated case."""
    return residuals_of(SIMULATED_3 if case.zero_stage == 3 else SIMULATED_0_2)


def upper_required_bytes(case: TrainingCase, required_bytes: int) -> int:
    """The upper end of the band of what a case requires: what must fit for the verdict `fits`."""
    return residuals(case).band_bytes("required", required_bytes)[1]


def lower_limit_bytes(case: TrainingCase, limit_bytes: int) -> int:
    """The limit under which a case must get through for its whole band to fit `limit_bytes`."""
    scale = 1 << 20
    return limit_bytes * scale // max(scale, upper_required_bytes(case, scale))
