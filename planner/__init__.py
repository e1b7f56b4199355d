"""The memory-budget planner: pure arithmetic over shapes and DeepSpeed's own rules.

    >>> import planner
    >>> sorted(planner.gpu_names())[:2]
    ['a100-40gb', 'a100-80gb']

Nothing here imports torch, transformers, deepspeed or hydra, and a name is loaded when it is first asked for:
workers that want `planner.units` alone do not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.errors import CaseError
    from planner.forecast import Forecast, Verdict
    from planner.forecasting import forecast_training, predict
    from planner.parsing import parse_training_case
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

_HOMES = {
    "errors": ("CaseError",),
    "forecast": ("Forecast", "Verdict"),
    "forecasting": ("forecast_training", "predict"),
    "parsing": ("parse_training_case",),
    "serving.sglang": ("ServingForecast",),
    "tables": ("Gpu", "gpu", "gpu_names", "model_config", "model_names"),
    "training_case": ("TrainingCase",),
}
"""Module -> public names that it holds; none of them may be called as a module of this package is."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
