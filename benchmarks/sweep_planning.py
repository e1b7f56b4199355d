"""Seconds that a sweep of 10,000 points takes to be planned, beside Hydra's own composition of its points.

    python benchmarks/sweep_planning.py [--check SECONDS] [--seed N]

Hydra composes 200 of the points, in one session, and is extrapolated. `--check` takes random settings for
so long, compares their verdicts with those of the full forecast (`llmsys plan`), and prints how far
estimates lie from what jobs require: the figures in `llmsys_exp/sweeps/gate/margins.py` stand on that.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass

from hydra import compose, initialize_config_dir

import planner
from llmsys_exp.config.compose import VERSION_BASE, register_schema
from llmsys_exp.config.folders import ROOT_CONFIG, conf_dir
from llmsys_exp.errors import UserError
from llmsys_exp.plan.resolve import settle
from llmsys_exp.sweeps.gate.gate import gate_points
from llmsys_exp.sweeps.gate.outcomes import Outcomes
from llmsys_exp.sweeps.gate.playing import FITS, NEAR, NO_FIT, TIGHT
from llmsys_exp.sweeps.points.composing import Composer
from llmsys_exp.sweeps.points.find import points_of
from llmsys_exp.sweeps.points.settings import one_setting
from planner.units import GIB

SAMPLE = 200
DEEPSPEED_CHAT = (
    ["model=opt_1_3b", "hardware=v100_16gb", "offload.param=none", "training.gradient_checkpointing=false"],
    [
        "method=lora,full", "zero.stage=2,3", "offload.optimizer=none,cpu",
        "training.micro_batch=1,2,4,6,8,12,16,24,32,64", "training.learning_rate=1e-5,2e-5,5e-5,1e-4,2e-4",
        "seed=range(25)",
    ],
)  # fmt: skip
NUMBERS = (
    ["model=llama3_2_1b", "hardware=a10g", "method=lora", "zero.stage=2", "offload=none"],
    [
        "training.micro_batch=range(1,21)", "data.max_length=range(128,1408,128)", "method.lora.r=4,8,16,32,64",
        "training.learning_rate=1e-5,2e-5,3e-5,5e-5,7e-5,1e-4,2e-4,3e-4,5e-4,1e-3",
    ],
)  # fmt: skip


@dataclass
class Check:
    """Verdicts compared with full forecasts."""

    compared: int = 0
    near: int = 0
    wrong: int = 0
    lowest: float = 0.0
    highest: float = 0.0


def main() -> None:
    """Measure both sweeps, or check verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=float, metavar="SECONDS", help="compare random verdicts for so long")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.check is not None:
        print(check(asked.check, random.Random(asked.seed)))
        return
    for name, (base, swept) in (("DeepSpeed-Chat's grid", DEEPSPEED_CHAT), ("numbers", NUMBERS)):
        measure(name, base, swept)


def measure(name: str, base: list[str], swept: list[str]) -> None:
    """Plan one sweep and print the seconds."""
    began = time.perf_counter()
    points = points_of(base, swept, None, "train")
    composed = time.perf_counter()
    gated = gate_points(points, verb="train", policy="skip")
    planned = time.perf_counter()
    every = max(1, len(gated) // SAMPLE)
    sample = [[*points.base, *point.overrides] for point in points.points[::every][:SAMPLE]]
    each_s = _hydra_s(sample) / len(sample)
    print(
        f"{name}: {len(gated):,} points, {planned - began:.2f} s "
        f"(points {composed - began:.2f} s, gate {planned - composed:.2f} s); "
        f"Hydra composes one in {1e3 * each_s:.0f} ms, all of them in {each_s * len(gated):,.0f} s"
    )
    labels = Counter((one.verdict, one.figures["label"], one.figures.get("tier", "")) for one in gated)
    for (verdict, label, tier), count in sorted(labels.items()):
        print(f"    {count:6,} {verdict:8} {label:15} {tier}")


def check(seconds: float, chance: random.Random) -> Check:
    """Compare random settings for so long."""
    found = Check()
    composers: dict[tuple[str, str], Composer] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        model = chance.choice(
            ["opt_1_3b", "qwen2_5_0_5b", "llama3_2_1b", "gpt2", "qwen2_5_1_5b", "pythia_1_4b"]
        )
        card = chance.choice(["v100_16gb", "t4", "l4", "rtx3090", "rtx4080", "a100_40gb", "cpu"])
        if (model, card) not in composers:
            composers[model, card] = Composer([f"model={model}", f"hardware={card}"])
        _compare(composers[model, card], _random_settings(chance), found)
    return found


def _random_settings(chance: random.Random) -> list[str]:
    choices = {
        "method.kind": ["lora", "full", "qlora", "freeze"],
        "zero.stage": ["auto", 0, 1, 2, 3, 3],
        "offload.optimizer": ["auto", "none", "cpu"],
        "offload.param": ["auto", "none", "none", "cpu"],
        "training.micro_batch": ["auto", 1, 2, 3, 4, 6, 8, 12, 16, 24, 32],
        "training.grad_accum": ["auto", 1, 4],
        "training.gradient_checkpointing": ["auto", "true", "false"],
        "training.expandable_segments": ["auto", "false"],
        "data.max_length": [256, 512, 1024],
        "hardware.gpus_per_node": [1, 1, 2, 4],
    }
    return [f"{key}={chance.choice(values)}" for key, values in choices.items()]


def _compare(composer: Composer, overrides: list[str], found: Check) -> None:
    point = composer.resolve([one_setting(text) for text in overrides])
    outcome = Outcomes("train", most_plays=0).of([point])[0]
    config = point.config()
    try:
        settled = settle(config)
    except UserError:
        found.wrong += not outcome.refused
        return
    limit = settled.budget_bytes
    assert limit is not None  # all these cards are known
    forecast = planner.forecast_training(settled.case, ranks_per_node=config.hardware.gpus_per_node)
    sure = forecast.band_bytes("required")[1] <= limit
    label = (FITS if sure else TIGHT) if forecast.survives(limit) else NO_FIT
    found.compared += 1
    found.near += outcome.figures.get("label") == NEAR
    if outcome.figures["label"] not in (NEAR, label):
        found.wrong += 1
        print(" ".join(overrides), label, outcome.figures)
    given = [text for text in overrides if "grad_accum" not in text and "expandable" not in text]
    if not any("auto" in text for text in given):
        off = forecast.required_bytes / GIB / outcome.figures["needed_gib"] - 1
        found.lowest, found.highest = min(found.lowest, off), max(found.highest, off)


def _hydra_s(points: list[list[str]]) -> float:
    """Seconds of Hydra's own composition of points, the session's start left out."""
    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="llmsys"):
        began = time.perf_counter()
        for overrides in points:
            compose(ROOT_CONFIG, overrides=overrides)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
