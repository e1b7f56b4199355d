"""The memory-budget planner: pure arithmetic over shapes and DeepSpeed's own rules.

    >>> import planner
    >>> sorted(planner.gpu_names())[:2]
    ['a100-40gb', 'a100-80gb']

Nothing here imports torch, transformers, deepspeed or hydra.
"""

from planner.errors import CaseError
from planner.forecast import Forecast, Verdict
from planner.parsing import parse_training_case
from planner.predict import forecast_training, predict
from planner.serving.sglang import ServingForecast
from planner.tables import Gpu, gpu, gpu_names, model_config, model_names
from planner.training_case import TrainingCase

__all__ = [
    "CaseError",
    "Forecast",
    "Gpu",
    "ServingForecast",
    "TrainingCase",
    "Verdict",
    "forecast_training",
    "gpu",
    "gpu_names",
    "model_config",
    "model_names",
    "parse_training_case",
    "predict",
]
