"""The gate of a sweep: verdicts of the planner for many points, and what is done about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import DoesNotFit, UserError
from llmsys_exp.plan.resolve import settle
from llmsys_exp.sweeps.gate import outcomes
from llmsys_exp.sweeps.gate.gate import gate_points, reason
from llmsys_exp.sweeps.gate.margins import ADAPTERS, margin_of, surely_fits, surely_not
from llmsys_exp.sweeps.gate.outcomes import Outcomes
from llmsys_exp.sweeps.gate.playing import Judged, Pair, borders, judge, neighbour
from llmsys_exp.sweeps.points.composing import Composer
from llmsys_exp.sweeps.points.find import points_of
from llmsys_exp.sweeps.points.point import Gated, Point, Points
from llmsys_exp.sweeps.points.settings import one_setting
from planner.forecasting import forecast_training
from planner.tables import gpu
from planner.units import GIB

OPT = (
    "model=opt_1_3b", "hardware=v100_16gb", "method=full", "offload.param=none", "zero.stage=2",
    "training.gradient_checkpointing=false",
)  # fmt: skip
SMALL = (
    "model=gpt2", "hardware=t4", "method=lora", "zero.stage=2", "offload=none",
    "training.gradient_checkpointing=false", "data.max_length=256",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _large_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "free_bytes", lambda outputs: 1000 * GIB)


@cache
def _points(base: tuple[str, ...], *swept: str) -> Points:
    return points_of(base, swept, None, "train")


def _gate(base: Sequence[str], *swept: str, policy: str | None = "skip", fill: bool = False) -> list[Gated]:
    points = _points(tuple(base), *swept)
    return gate_points(points, verb="train", policy=policy, fill=fill)


def test_points_that_do_not_fit_are_skipped_with_figures_and_the_cheapest_change() -> None:
    runs, skipped = _gate(OPT, "offload.optimizer=cpu,none")
    assert (runs.verdict, skipped.verdict) == ("runs", "skipped")
    assert skipped.figures["label"] == "does not fit"
    assert skipped.figures["needed_gib"] > 20 > skipped.figures["limit_gib"] > 14
    assert skipped.fix is not None
    assert skipped.fix.startswith("offload.optimizer=cpu (needs about")
    assert "GiB, and a GPU has " in reason(skipped)


def test_policies() -> None:
    swept = "offload.optimizer=cpu,none"
    assert [one.verdict for one in _gate(OPT, swept, policy="warn")] == ["runs", "tight"]
    assert [one.verdict for one in _gate(OPT, swept, policy="off")] == ["runs", "runs"]
    with pytest.raises(
        DoesNotFit, match=r"(?s)1 of 2 points would not run.*\n  point 2 \(offload.optimizer=none\)"
    ):
        _gate(OPT, swept, policy=None)  # gate.policy is error unless it is set
    with pytest.raises(UserError, match="Did you mean skip"):
        _gate(OPT, swept, policy="skipp")


def test_what_cannot_be_planned_is_skipped_with_the_reason() -> None:
    good, bad = _gate(OPT, "offload.optimizer=cpu", "training.learning_rate=1e-4,-1", policy="warn")
    assert (good.verdict, bad.verdict) == ("runs", "skipped")
    assert "training.learning_rate is -1" in bad.figures["refused"]
    swept = ("training.global_batch=8,9", "training.micro_batch=4")
    even, odd = _gate(OPT, "offload.optimizer=cpu", *swept)
    assert (even.verdict, odd.verdict) == ("runs", "skipped")
    assert "is not a multiple of" in odd.figures["refused"]


def test_fill_takes_the_nearest_that_fits_and_never_the_same_twice() -> None:
    base = (*OPT, "offload.optimizer=cpu", "data.max_length=512", "training.grad_accum=1")
    first, filled = _gate(base, "training.micro_batch=1,64", fill=True)
    assert first.filled_from is None
    assert filled.verdict in ("runs", "tight")
    assert filled.filled_from == ("training.micro_batch=64",)
    assert filled.point.overrides[0].startswith("training.micro_batch=")
    assert filled.point.key != first.point.key
    _, same = _gate(OPT, "offload.optimizer=cpu,none", fill=True)
    assert (same.verdict, same.figures["filled_by"]) == ("skipped", 1)
    assert reason(same).endswith(", which is point 1")


def _plans(config: Config) -> str:
    """What `llmsys plan` says."""
    settled = settle(config)
    forecast = forecast_training(settled.case, ranks_per_node=1)
    assert settled.budget_bytes is not None
    if not forecast.survives(settled.budget_bytes):
        return "does not fit"
    return "fits" if forecast.band_bytes("required")[1] <= settled.budget_bytes else "tight"


def test_verdicts_are_those_of_plan_on_both_sides_of_the_limit() -> None:
    composer = Composer([*SMALL, "training.micro_batch=8", "training.grad_accum=1"])
    plain = settle(composer.resolve(()).config())
    assert plain.budget_bytes is not None
    need = forecast_training(plain.case, ranks_per_node=1).required_bytes
    card = (gpu("t4").usable_gib + gpu("t4").context_gib) * GIB - plain.budget_bytes  # beside the budget
    cards = [round((need * share + card) / GIB, 3) for share in (0.5, 0.97, 1.005, 1.2, 2)]
    resolved = [composer.resolve([one_setting(f"hardware.memory_gib={size}")]) for size in cards]
    found = Outcomes("train").of(resolved)
    labels = [one.figures["label"] for one in found]
    assert labels == [_plans(one.config()) for one in resolved]
    assert labels[:2] == ["does not fit", "does not fit"]
    assert labels[-1] == "fits"
    assert [one.figures["tier"] for one in found][:3] == ["estimate", "formula", "formula"]
    near = Outcomes("train", most_plays=0).of([resolved[2]])[0]
    assert (near.fits, near.sure, near.figures["label"]) == (True, False, "near the limit")


def test_borders_are_found_with_few_plays() -> None:
    played: list[int] = []

    def play(pair: Pair) -> Judged:
        played.append(pair[0])
        return Judged("fits" if pair[0] < 20 else "tight" if pair[0] < 22 else "does not fit", pair=pair)

    def say(one: Judged, pair: Pair) -> Judged | None:
        fits, not_ = one.label == "fits" and pair < one.pair, one.label == "does not fit" and pair > one.pair
        return Judged(one.label, pair=pair) if fits or not_ else None

    found = borders([(micro, 1) for micro in range(1, 65)], play, say, first=40)
    expected = ["fits"] * 19 + ["tight"] * 2 + ["does not fit"] * 43
    assert [one.label for one in found if one is not None] == expected
    assert len(played) <= 14


def test_a_play_speaks_for_its_neighbours() -> None:
    composer = Composer([*SMALL, "training.micro_batch=16", "training.grad_accum=1"])
    case = settle(composer.resolve(()).config()).case
    played = judge(case, case, 64 * GIB, 1)
    required = forecast_training(case, ranks_per_node=1).required_bytes
    assert abs(played.needed_bytes / required - 1) < 1 / 64

    def said(limit_share: float, micro: int) -> str | None:
        label = "fits" if limit_share > 1.1 else "does not fit" if limit_share < 1 else "tight"
        one = replace(played, label=label, limit_bytes=int(required * limit_share))
        told = neighbour(one, (micro, 1))
        return None if told is None else told.label

    assert [said(1.2, 12), said(0.9, 20)] == ["fits", "does not fit"]  # by their order
    assert [said(0.9, 10), said(1.2, 26)] == ["fits", "does not fit"]  # by the corrected estimate
    assert [said(0.99, 15), said(1.2, 17), said(1.02, 16)] == [None, None, None]
    assert said(4.0, 64) is None  # too far off


def test_an_estimate_decides_sooner_where_it_is_exact() -> None:
    settings = [one_setting(f"training.{text}") for text in ("micro_batch=1", "expandable_segments=true")]
    exact = settle(Composer(SMALL).resolve(settings).config()).case
    plain = replace(exact, expandable_segments=False)
    assert margin_of(exact) == ADAPTERS
    for other in (plain, replace(exact, liger=True), replace(exact, zero_stage=1)):
        assert margin_of(other).over > 10 * ADAPTERS.over
    assert surely_fits(exact, 12 * GIB, 13 * GIB)
    assert surely_not(exact, 14 * GIB, 13 * GIB)
    assert not surely_fits(plain, 12 * GIB, 13 * GIB)


def test_main_memory_and_disk_are_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    enough, short = _gate(OPT, "offload.optimizer=cpu", "hardware.host_memory_gib=64,8")
    assert (enough.verdict, short.verdict, short.figures["where"]) == ("runs", "skipped", "host")
    monkeypatch.setattr(outcomes, "free_bytes", lambda outputs: GIB)
    full = _gate(OPT, "offload.optimizer=cpu,none")[0]
    assert (full.verdict, full.figures["where"], full.figures["limit_gib"]) == ("skipped", "disk", 1.0)


def test_points_that_answer_prompts_are_planned_as_engines() -> None:
    swept = ("inference.batch_size=1,8", "seed=1,2")
    points = points_of(("model=opt_1_3b", "hardware=v100_16gb"), swept, None, "infer")
    gated = gate_points(points, verb="infer", policy="skip")
    assert {one.verdict for one in gated} == {"runs"}
    assert gated[0].figures["needed_gib"] < gated[-1].figures["needed_gib"]


def test_points_keep_their_numbers_and_order() -> None:
    gated = _gate(OPT, "offload.optimizer=none,cpu", "seed=1,2")
    assert [one.point.number for one in gated] == [1, 2, 3, 4]
    assert all(isinstance(one.point, Point) for one in gated)


def test_settings_that_go_with_none_of_the_open_ones_are_refused_and_no_fault() -> None:
    base = ("model=gpt2", "hardware=a10g", "method=qlora", "zero.stage=3", "offload.optimizer=cpu")
    fits, bad = _gate(base, "offload.param=none,cpu", "hardware.memory_gib=20")
    assert (fits.verdict, bad.verdict) == ("runs", "skipped")
    assert "refused" in bad.figures
