"""The formula's play in the place of the simulation, for models of a family that no formula knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner.errors import NotSimulated
from planner.simulate import tier

SHAPE = {
    "model_type": "nobody_knows",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "vocab_size": 32_000,
}
NUMEL = 400_000_000


class Played:
    """Stands for the simulation: the same shape as a llama, played by formula."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    def readable(self, content: Mapping[str, Any], **_: Any) -> tuple[planner.TrainingCase, None]:
        shape = {**content["hf_config"], "model_type": "llama"}
        case = planner.parse_training_case({**content, "hf_config": shape})
        if case.device == "cpu":
            raise NotSimulated("tier simulate does not take a job without a GPU")
        return case, None

    def simulation(self, content: Mapping[str, Any], **_: Any) -> tier.Simulation:
        self.asked.append(content)
        case, _ = self.readable(content)
        return tier.Simulation(case, planner.forecast_training(case), SimpleNamespace(recorder=None))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Take the play for the simulation."""
    played = Played()
    monkeypatch.setattr(tier, "readable", played.readable)
    monkeypatch.setattr(tier, "simulation", played.simulation)
    monkeypatch.setattr(tier, "trained_numel", lambda content, **_: NUMEL)
    monkeypatch.setattr("planner.simulate.peak.largest_at_peak", lambda recorder: [])
    return played


def model_in(folder: Path) -> list[str]:
    """Write a model of an unknown family; returns overrides that name it."""
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return ["model=local", f"model.path={folder}", "method=full"]
