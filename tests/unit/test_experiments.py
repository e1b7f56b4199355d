"""Every shipped experiment composes, has a note, and plans to the verdict that its note tells."""

from __future__ import annotations

import re
import shlex

import pytest

import planner
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.folders import experiments_dir, shipped_path
from llmsys_exp.errors import ConfigError
from llmsys_exp.plan.resolve import settle
from planner.uncertainty import upper_required_bytes
from planner.units import gib

NAMES = sorted(path.stem for path in experiments_dir().glob("*.yaml"))
TOLD = re.compile(r"^Planned: ([a-z ]+), ([\d.]+) of ([\d.]+) GiB on each GPU, with `([^`]+)`$", re.MULTILINE)
WITH_VERDICT = 8  # fewer would mean that the search went wrong, not the experiments


def note(name: str) -> str:
    path = experiments_dir() / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


VERDICTS = [(name, *match) for name in NAMES for match in TOLD.findall(note(name))]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_composes_under_its_own_name_with_data_that_is_there(name: str) -> None:
    config = compose_config([f"experiment={name}"])
    assert config.name == name
    assert note(name), "an experiment needs a note"
    for text in (config.data.train, config.data.heldout):
        assert text is None or not text.startswith("shipped:") or shipped_path(text).exists()


@pytest.mark.parametrize(
    ("name", "verdict", "needs", "budget", "settings"),
    VERDICTS,
    ids=[f"{one[0]}-{one[1]}" for one in VERDICTS],
)
def test_the_note_tells_what_the_plan_says(
    name: str, verdict: str, needs: str, budget: str, settings: str
) -> None:
    settled = settle(compose_config([f"experiment={name}", *shlex.split(settings)]))
    forecast = planner.forecast_training(settled.case, ranks_per_node=settled.config.hardware.gpus_per_node)
    required, limit = forecast.required_bytes, settled.budget_bytes
    assert limit is not None
    assert (round(gib(required), 1), round(gib(limit), 1)) == (float(needs), float(budget))
    sure = upper_required_bytes(settled.case, required) <= limit
    assert verdict == ("fits" if sure else "tight" if forecast.survives(limit) else "does not fit")


def test_verdicts_are_told() -> None:
    assert len(VERDICTS) >= WITH_VERDICT


def test_the_handed_out_settings_are_refused_for_their_type() -> None:
    with pytest.raises(ConfigError, match="bf16 does not run on Tesla V100"):
        settle(compose_config(["experiment=hw6_handed_out"]))
