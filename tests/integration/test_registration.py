"""Parameters stand in the formula's networks in the order in which transformers registers them."""

from __future__ import annotations

import pytest

import planner
from benchmarks.trace_check.configs import CONFIGS, config_of
from planner.network.build import build_network

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("family", CONFIGS)
def test_parameters_are_registered_as_transformers_does(family: str) -> None:
    from benchmarks.trace_check.traced import real_model

    network = build_network(planner.parse_training_case({"hf_config": config_of(family), "method": "full"}))
    ours = [parameter.numel for parameter in network.parameters() if parameter.numel]
    real = [one.numel() for one in real_model(config_of(family), attention="eager").parameters()]
    assert ours == real
