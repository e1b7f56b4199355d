"""The loss scale of fp16 at stage 0, which DeepSpeed's engine leaves to whoever calls it.

DeepSpeed 0.19.8: `engine.py: backward` scales a loss for ZeRO's optimizers only. Those of stage 0
(`fp16/fused_optimizer.py`, `fp16/unfused_optimizer.py`) divide gradients by the scale before their update all
the same, so that without this they would be 65,536 times too small and drown in Adam's epsilon.
"""

from __future__ import annotations

from typing import Any


def scale_of(engine: Any) -> float:
    """Return what a loss has to be multiplied by before `engine.backward`; it changes between steps alone."""
    scales = getattr(engine.optimizer, "loss_scale_config", None)
    if scales is None or engine.zero_optimization_stage() > 0:
        return 1.0
    return float(scales.cur_scale)


def norm_divisor(engine: Any, scale: float) -> float:
    """Return what the engine's norm has to be divided by: one optimizer tells it with the scale in it."""
    return scale if type(engine.optimizer).__name__ == "FP16_UnfusedOptimizer" else 1.0
