"""The serving forecast of each engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.serving.case import ServingCase, parse_serving_case
from planner.serving.forecast import GenerationForecast, ServingForecast
from planner.serving.generate import forecast_generation
from planner.serving.sglang import forecast_sglang

__all__ = ["GenerationForecast", "ServingForecast", "forecast_serving"]


def forecast_serving(case: Mapping[str, Any]) -> ServingForecast | GenerationForecast:
    """Check a serving case and forecast it for its engine.

    Raises:
        CaseError: when the case cannot be planned, with every reason.
    """
    parsed = parse_serving_case(case)
    return forecast_sglang(parsed) if isinstance(parsed, ServingCase) else forecast_generation(parsed)
