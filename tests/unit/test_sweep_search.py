"""Search: what is asked for, what fits, what Optuna is told, and that a killed search goes on as it would have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.errors import DoesNotFit, UserError
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep, open_sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, LOST, PLANNED, PRUNED, RUNNING, Ledger, PointState
from llmsys_exp.sweeps.ledger.settle import reopen
from llmsys_exp.sweeps.points.find import search_base
from llmsys_exp.sweeps.points.sweep_file import SweepFile, sweep_of
from llmsys_exp.sweeps.search import supply as supplying
from llmsys_exp.sweeps.search.best import standing
from llmsys_exp.sweeps.search.feasible import Feasible
from llmsys_exp.sweeps.search.metrics import values_told
from llmsys_exp.sweeps.search.pruning import Pruning
from llmsys_exp.sweeps.search.study import trial_of
from llmsys_exp.sweeps.search.supply import Supply

RATE, BATCH, RANK = "training.learning_rate", "training.micro_batch", "method.lora.r"
RATES = {"low": 1e-6, "high": 1e-2, "log": True}
CPU = ("hardware=cpu", "method=lora", "gate=off")
CARD = ("experiment=quickstart", "hardware=v100_16gb")


def read(search: dict[str, Any], **sections: Any) -> SweepFile:
    return sweep_of({"search": search, "objective": "evaluation.loss", **sections}, "s.yaml")


def begun(
    tmp_path: Path, search: dict[str, Any], base: tuple[str, ...] = CPU, **sections: Any
) -> tuple[SweepPaths, Sweep]:
    found = read(search, **sections).search
    assert found is not None
    return create_sweep(tmp_path, "s", "train", base=base, points=found.content, options={})


def work(ledger: Ledger, sweep: Sweep, number: int) -> None:
    """Be the job of a point."""
    params = {one.number: one.params for one in ledger.suggestions}[number]
    assert ledger.move(number, RUNNING)
    assert ledger.move(number, DONE, values=[abs(float(params[RATE]) - 1e-4) + float(params.get(RANK, 0))])


def added(sweep: Sweep, ledger: Ledger, said: list[str] | None = None) -> None:
    """Add one point as a runner does that was just started."""
    supply, before = Supply(sweep, (said if said is not None else []).append), len(ledger.states())
    while len(ledger.states()) == before and supply.add(ledger):
        pass


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"search": {}}, "The search space is empty"),
        ({"search": {RATE: {"low": 1e-2, "high": 1e-3}}}, "low is 0.01 and high is 0.001"),
        ({"search": {RATE: {"low": 0, "high": 1e-3, "log": True}}}, "A logarithm is of numbers above 0"),
        ({"search": {RATE: {"low": 1e-5}}}, "high is missing"),
        ({"search": {RATE: {"low": 1e-5, "high": "x"}}}, "high is 'x', which is no number"),
        ({"search": {RATE: {"low": 1e-5, "high": 1, "logs": True}}}, "Did you mean log?"),
        ({"search": {RATE: []}}, "has no values"),
        ({"search": {RATE: 1e-4}}, "one value goes to base"),
        ({"search": {RANK: [8, 8]}}, "a value twice"),
        ({"search": {RANK: [[8], [16]]}}, "numbers and words"),
        ({"search": {BATCH: {"low": 1, "high": 8, "step": 0.5}}}, "takes whole numbers"),
        (
            {"search": {BATCH: {"low": 1, "high": 8, "step": 1, "log": True}}},
            "log and step do not go together",
        ),
        ({"search": {BATCH: {"low": 0, "high": 8}}}, "training.micro_batch is 0"),
        ({"objective": None}, "A search needs an objective"),
        ({"objective": []}, "There is no objective"),
        ({"objective": "evaluation.los"}, "Did you mean evaluation.loss?"),
        ({"objective": {"metric": "loss", "direction": "minimise"}}, "Did you mean minimize?"),
        ({"objective": ["loss", "loss"]}, "loss is an objective twice"),
        ({"trials": 0}, "trials is 0"),
        ({"trials": 1.5}, "trials is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"sampler": "tpee"}, "Did you mean tpe?"),
        ({"pruner": "medium"}, "Did you mean median?"),
        ({"pruner": {"median": {"warmup": 3}}}, "Did you mean warmup_steps?"),
        ({"pruner": "median", "objective": "tokens_per_s"}, "not known before a run has ended"),
        ({"pruner": "median", "objective": ["loss", "peak_gib"]}, "one objective alone"),
        ({"grid": {RANK: [1]}}, "search and grid do not go together"),
        ({"when": [{"if": {RATE: 1}, "grid": {RANK: [4, 8]}}]}, "method.lora.r has 2 values"),
        ({"when": [{"if": {BATCH: 1}, "grid": {RATE: [1e-4]}}]}, "is searched, too"),
        ({"trails": 3}, "Did you mean trials?"),
    ],
)
def test_what_is_no_search_is_refused_by_name(sections: dict[str, Any], says: str):
    with pytest.raises(UserError, match=re.escape(says)):
        sweep_of({"search": {RATE: RATES}, "objective": "evaluation.loss", **sections}, "s.yaml")


@pytest.mark.parametrize(
    ("search", "overrides", "says"),
    [
        ({"training.learning_rat": RATES}, [], "learning_rate"),
        ({"zero.stage": {"low": 0.5, "high": 1.5}}, [], "zero.stage"),
        ({RATE: RATES}, [f"{RATE}=1e-3"], "is on the command line and swept in s.yaml"),
        ({RATE: RATES}, [f"{RANK}=8,16"], "method.lora.r has several values"),
    ],
)
def test_settings_of_a_search_are_checked_before_it_begins(search: Any, overrides: list[str], says: str):
    with pytest.raises(UserError, match=re.escape(says)):
        search_base(overrides, read(search))


def test_sections_of_a_search_without_one_are_refused():
    with pytest.raises(UserError, match="trials belongs to a search"):
        sweep_of({"grid": {RANK: [8]}, "trials": 3}, "s.yaml")


def test_a_killed_search_suggests_what_it_would_have_and_nothing_twice(tmp_path: Path):
    space = {RATE: RATES, RANK: {"low": 1, "high": 64, "log": True}}
    found: list[list[tuple[str, ...]]] = []
    for folder, dies in ((tmp_path / "a", False), (tmp_path / "b", True)):
        paths, sweep = begun(folder, space, trials=14, seed=5)
        ledger = sweep.ledger(paths)
        supply = Supply(sweep, print)
        for number in range(1, 15):
            if dies:  # everything but the files is gone, and the last line is cut at some byte
                with paths.ledger.open("ab") as file:
                    file.write(paths.ledger.read_bytes()[-40 : -1 - number])
                paths, sweep = open_sweep(paths.folder)
                ledger, supply = sweep.ledger(paths), Supply(sweep, print)
            assert supply.add(ledger)
            work(ledger, sweep, number)
        assert not supply.add(ledger)
        found.append([point.overrides for point in sweep.points])
    assert found[0] == found[1]
    assert len(set(found[0])) == 14


def test_a_search_that_is_asked_for_more_goes_on_even_while_it_runs(tmp_path: Path):
    paths, sweep = begun(tmp_path, {RATE: RATES}, trials=1)
    ledger, supply = sweep.ledger(paths), Supply(sweep, print)
    assert supply.add(ledger)
    assert not supply.add(ledger)
    other = open_sweep(paths.folder)[1]
    other.ledger(paths).extend(2)  # type: ignore[union-attr]
    assert supply.add(ledger)
    assert not supply.add(ledger)
    assert (sweep.expected, open_sweep(paths.folder)[1].expected) == (2, 2)


def test_the_ledger_of_a_search_cut_at_any_byte_is_read_and_goes_on(tmp_path: Path):
    paths, sweep = begun(tmp_path, {RATE: RATES})
    ledger = sweep.ledger(paths)
    ledger.reject({"params": {RATE: 1e-3}, "what": "needs 9 GiB", "kind": "too large", "excess": 0.5})
    added(sweep, ledger)
    whole = paths.ledger.read_bytes()
    for size in range(whole.index(b"\n") + 1, len(whole), 7):
        paths.ledger.write_bytes(whole[:size])
        now = open_sweep(paths.folder)[1]
        found = now.ledger(paths)
        count = len(found.states())
        assert count == len(now.points) == 0, "a point whose line is not whole was never started"
        assert found.add(1, {"key": "k", "overrides": [], "params": {RATE: 1e-4}, "forecast": {}})
        assert [point.number for point in open_sweep(paths.folder)[1].points] == [1]


def test_points_under_way_count_as_the_liar_says_and_are_not_suggested_again(tmp_path: Path):
    paths, sweep = begun(tmp_path, {RATE: RATES}, trials=14)
    ledger = sweep.ledger(paths)
    for _ in range(14):
        added(sweep, ledger)
    assert [now.state for now in ledger.states().values()] == [PLANNED] * 14
    assert len({point.key for point in sweep.points}) == 14


def test_what_does_not_fit_is_left_out_of_a_space_that_can_be_listed(tmp_path: Path):
    asked = read({BATCH: [1, 2, 32, 512], "data.max_length": [128, 2048], RATE: RATES})
    space, against = Feasible(asked, CARD, "train").narrowed()
    assert {one.key: one.choices for one in space}[BATCH] == (1, 2, 32)
    assert against == {"too large for a GPU": 3}
    assert {one.key: one for one in space}[RATE].high == 1e-2, "what needs no memory stays as it was"
    content = {**asked.search.content, "search": {one.key: one.plain() for one in space}}  # type: ignore[union-attr]
    paths, sweep = create_sweep(
        tmp_path, "s", "train", base=CARD, points={**content, "trials": 12}, options={}
    )
    ledger = sweep.ledger(paths)
    for number in range(1, 13):
        added(sweep, ledger)
        work(ledger, sweep, number)
    pairs = {(one.params[BATCH], one.params["data.max_length"]) for one in ledger.suggestions}
    assert pairs <= {(1, 128), (1, 2048), (2, 128), (2, 2048), (32, 128)}
    assert all(one.number is not None for one in ledger.suggestions), "what does not fit is never suggested"


def test_a_space_in_which_nothing_fits_is_refused():
    asked = read({BATCH: [4096, 8192], RATE: RATES})
    with pytest.raises(DoesNotFit, match="None of the 2 combinations"):
        Feasible(asked, CARD, "train").narrowed()


def test_a_suggestion_that_does_not_fit_is_counted_and_kept_away_from(tmp_path: Path):
    paths, sweep = begun(
        tmp_path,
        {BATCH: {"low": 1, "high": 64}, "data.max_length": {"low": 128, "high": 2048}},
        CARD,
        seed=0,  # it begins with two that are far too large
    )
    ledger = sweep.ledger(paths)
    added(sweep, ledger)
    rejected = [one for one in ledger.suggestions if one.number is None]
    assert len(rejected) == 2
    assert all("a GPU has 14.3 GiB for it" in one.what and one.excess > 0 for one in rejected)
    assert standing(sweep, ledger).turned_down == {"too large for a GPU": 2}
    assert open_sweep(paths.folder)[1].points == sweep.points


def test_a_search_that_finds_nothing_that_fits_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supplying, "MOST_ASKS", 6)
    paths, sweep = begun(tmp_path, {BATCH: {"low": 9000, "high": 65_000}, RATE: RATES}, CARD, trials=3)
    ledger, said = sweep.ledger(paths), []
    added(sweep, ledger, said)
    assert "6 suggestions in a row came to nothing.  The last one that does not fit needs" in said[0]
    assert ledger.states() == {}
    found = standing(*_reread(paths))
    assert found.is_left
    assert "came to nothing" in found.ended


def test_a_small_space_is_gone_through_once_and_then_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supplying, "MOST_ASKS", 8)
    exclude = [{RANK: 8, "method.lora.dropout": 0.1}]
    paths, sweep = begun(
        tmp_path, {RANK: [4, 8], "method.lora.dropout": {"low": 0, "high": 0.2, "step": 0.1}}, exclude=exclude
    )
    ledger, said = sweep.ledger(paths), []
    for _ in range(9):
        added(sweep, ledger, said)
    assert len({point.overrides for point in sweep.points}) == 5
    assert all("all settings that fit were tried" in one for one in said)
    assert not standing(sweep, ledger).is_left


def test_a_search_whose_points_all_fail_ends_early_and_goes_on_after_a_retry(tmp_path: Path):
    paths, sweep = begun(tmp_path, {RATE: RATES})
    ledger, said = sweep.ledger(paths), []
    for number, kind in enumerate(["oom_gpu", "data", "data", "killed", "data"], start=1):
        added(sweep, ledger, said)
        assert ledger.move(number, RUNNING)
        assert ledger.move(number, FAILED, kind=kind, what="There is no such file")
    added(sweep, ledger, said)
    assert said == [
        "The search ends after 5 points: 3 failed and none is done, the last one by data: There is no such file"
    ]
    reopen(ledger, {"data"})
    added(sweep, ledger, said)
    assert len(ledger.states()) == 6


def test_when_gives_a_suggestion_what_depends_on_it(tmp_path: Path):
    when = [{"if": {RANK: 8}, "grid": {"method.lora.alpha": [32]}}]
    paths, sweep = begun(tmp_path, {RANK: [4, 8]}, when=when)
    ledger = sweep.ledger(paths)
    for _ in range(2):
        added(sweep, ledger)
    assert {point.overrides for point in sweep.points} == {
        ("method.lora.r=4",),
        ("method.lora.r=8", "method.lora.alpha=32"),
    }


def test_a_metric_that_no_run_has_ends_the_search_after_the_first_point(tmp_path: Path):
    paths, sweep = begun(tmp_path, {RATE: RATES}, objective="score")
    ledger, said = sweep.ledger(paths), []
    added(sweep, ledger, said)
    run = tmp_path / "run"
    run.mkdir()
    manifest = {"schema_version": 1, "results": {"train": {"loss": {"last": 1.5}}}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert ledger.move(1, RUNNING, folder=str(run))
    assert ledger.move(1, DONE, **values_told(sweep.search, str(run)))
    added(sweep, ledger, said)
    assert said == ["The search ends after 1 points: no run has score among its results.  Point 1 has loss"]
    assert len(ledger.states()) == 1


@pytest.mark.parametrize(
    ("state", "fields", "told"),
    [
        (PLANNED, {}, "RUNNING"),
        (LOST, {}, "RUNNING"),
        (FAILED, {"kind": "killed"}, "RUNNING"),
        (DONE, {"values": [1.5]}, "COMPLETE"),
        (DONE, {"values": ["nan"]}, "PRUNED"),
        (DONE, {"values": [None]}, "FAIL"),
        (FAILED, {"kind": "oom_gpu"}, "PRUNED 1.0"),
        (FAILED, {"kind": "diverged"}, "PRUNED"),
        (FAILED, {"kind": "bug"}, "FAIL"),
        (PRUNED, {"step": 4, "value": 2.5}, "PRUNED {4: 2.5}"),
        (PRUNED, {"step": 4, "value": None}, "PRUNED"),
    ],
)
def test_optuna_is_told_what_the_ledger_says(state: str, fields: dict[str, Any], told: str):
    trial = trial_of({RATE: 1e-4}, PointState(1, state, fields=fields))
    assert f"{trial.state} {trial.excess or ''} {dict(trial.curve) or ''}".split() == told.split()


def test_a_point_that_was_retried_with_other_settings_is_no_evidence():
    now = PointState(1, DONE, fields={"values": [0.1]}, overrides=("training.epochs=9",))
    assert trial_of({RATE: 1e-4}, now).state == "FAIL"


@pytest.mark.parametrize("told", ["eval/loss", "train/loss"])
def test_a_run_that_is_worse_than_the_median_is_asked_to_stop_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
):
    asked: list[int] = []
    monkeypatch.setattr("llmsys_exp.sweeps.search.pruning.ask", lambda fields: asked.append(fields["pid"]))
    paths, sweep = begun(tmp_path, {RATE: RATES}, pruner={"median": {"startup_trials": 3, "warmup_steps": 2}})
    ledger = sweep.ledger(paths)
    curves = {4: [2.0, 1.9, 1.1], 5: [2.0, 1.9], 6: [2.0, 1.9, 1.1, 1.1]}
    for number in range(1, 7):
        added(sweep, ledger)
        run = tmp_path / str(number)
        run.mkdir()
        assert ledger.move(number, RUNNING, folder=str(run), pid=number)
        curve(run, told, curves.get(number, [2.0, 1.9, 1.0, 1.0]))
        if number < 4:
            assert ledger.move(number, DONE, values=[1.0])
    search = sweep.search and Supply(sweep, print)._search
    assert search
    for _ in range(2):
        Pruning(search).look(ledger)
    assert asked == [4, 4], "the second runner cannot know whether the first one has said so"
    pruning = ledger.states()[4].fields["pruning"]
    assert (pruning["step"], pruning["value"]) == (3, 1.1)
    assert "pruning" not in ledger.states()[5].fields, "in its first steps a run is left alone"
    assert "pruning" not in ledger.states()[6].fields, "and in its last one"


def test_an_edited_search_is_refused(tmp_path: Path):
    paths, _ = begun(tmp_path, {RATE: RATES})
    content = json.loads(paths.sweep.read_text())
    content["search"]["seed"] = 8
    paths.sweep.write_text(json.dumps(content))
    with pytest.raises(UserError, match="The search was changed after it had begun"):
        open_sweep(paths.folder)


def test_the_best_points_come_with_their_commands(tmp_path: Path):
    paths, sweep = begun(tmp_path, {RATE: RATES}, objective=["loss", "tokens_per_s"], trials=3)
    ledger = sweep.ledger(paths)
    for number, values in enumerate(([1.0, 50.0], [2.0, 90.0], [2.5, 80.0]), start=1):
        added(sweep, ledger)
        assert ledger.move(number, RUNNING)
        assert ledger.move(number, DONE, values=values)
    found = standing(sweep, ledger)
    assert found.best == (1, 2)
    assert (
        found.commands[1] == f"llmsys train hardware=cpu method=lora gate=off {sweep.points[0].overrides[0]}"
    )


def test_without_optuna_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("llmsys_exp.sweeps.search.study.find_spec", lambda name: None)
    _, sweep = begun(tmp_path, {RATE: RATES})
    with pytest.raises(UserError, match=re.escape("pip install 'llmsys-exp[search]'")):
        Supply(sweep, print)


def curve(run: Path, name: str, values: list[float]) -> None:
    lines = [{"step": step, name: value} for step, value in enumerate(values, start=1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "ev')


def _reread(paths: SweepPaths) -> tuple[Sweep, Ledger]:
    sweep = open_sweep(paths.folder)[1]
    ledger = sweep.ledger(paths)
    ledger.states()
    return sweep, ledger
