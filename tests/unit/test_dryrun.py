"""Dry runs as their parent sees them: what is refused, started, searched and shown; the GPU is played."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dry_outcomes import T4, outcome_of, small_job

from llmsys_exp.cli import plan as plan_verb
from llmsys_exp.cli.plan_tiers import TIERS, TierOptions, check_rank, check_swept, split_tier_options
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import Config
from llmsys_exp.config.tree import copy_of
from llmsys_exp.dryrun import card, start
from llmsys_exp.dryrun.card import Card
from llmsys_exp.dryrun.checks import DryAsk, check_ask
from llmsys_exp.dryrun.outcome import Outcome
from llmsys_exp.dryrun.run import DryRun
from llmsys_exp.dryrun.search import Found, search
from llmsys_exp.dryrun.start import Bench, dry_run, make_bench
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, JobError, UserError
from llmsys_exp.plan import Plan, resolve
from llmsys_exp.report.console import Console
from llmsys_exp.report.tier_text import dryrun_rows, show_dryrun
from planner.units import GIB, MIB

QUIET = Console(io.StringIO())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a small job."""
    return small_job(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plan(small: list[str]) -> Plan:
    """The same, settled."""
    return resolve(compose_config(small))


# ---- refused before anything starts


@pytest.mark.parametrize(
    ("overrides", "ask", "said"),
    [
        (("zero.stage=3", "offload.optimizer=nvme"), DryAsk(), "to NVMe"),
        ((), DryAsk(rank=2), "a number from 0 to 1"),
        ((), DryAsk(search="lenght"), "Did you mean length?"),
        (("hardware=cpu",), DryAsk(search="limit"), "no limit that could be set"),
    ],
)
def test_what_one_rank_cannot_stand_for_is_refused(
    small: list[str], overrides: Any, ask: DryAsk, said: str
) -> None:
    config = compose_config([*small, *overrides, "hardware.gpus_per_node=2"])
    with pytest.raises(UserError, match="(?s).*" + said.replace("?", r"\?")):
        check_ask(config, ask)


def test_without_a_gpu_the_user_is_told_what_needs_none(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.setattr(card, "installed_cards", lambda: None)
    monkeypatch.setattr(card, "machine_has_gpus", lambda: False)
    with pytest.raises(UserError, match="this machine has none"):
        make_bench(plan, DryAsk())


@pytest.mark.parametrize(
    ("free_gib", "holders"), [(14.8, {4711: 2 * GIB}), (9.0, {})], ids=["a process", "nobody says who"]
)
def test_a_gpu_that_others_use_is_refused_unless_shared(
    monkeypatch: pytest.MonkeyPatch, free_gib: float, holders: dict[int, int]
) -> None:
    taken = replace(T4, free_bytes=int(free_gib * GIB), holders=holders)
    _place(monkeypatch, taken)
    with pytest.raises(UserError, match="GPU 0 is in use") as refused:
        card.find_card([], wanted="t4")
    assert "--allow-shared" in str(refused.value) and ("4711" in str(refused.value)) == bool(holders)
    assert card.find_card([], wanted="t4", shared=True) is taken


def test_a_job_that_cannot_fit_what_is_free_is_not_started(
    monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    _place(monkeypatch, replace(T4, total_bytes=GIB, free_bytes=GIB // 64))
    with pytest.raises(UserError, match=r"has 0\.0 GiB free"):
        make_bench(plan, DryAsk())


def test_another_gpu_stands_for_the_one_that_is_planned_for(
    monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    large = Card("0", "NVIDIA H200", 141 * GIB, 140 * GIB, {})
    _place(monkeypatch, large)
    bench = make_bench(plan, DryAsk())
    assert bench.limit_bytes == plan.verdict.budget_bytes and not bench.is_short
    assert DryRun(plan, outcome_of(), bench).notes == [
        "Run on a NVIDIA H200, whose allocator stood for that of a t4"
    ]
    assert DryRun(plan, outcome_of(), replace(bench, card=T4)).notes == []


def test_nvidia_smi_answers_where_nvml_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def smi(entry: str, query: str) -> list[list[str]]:
        return [["4711", "2048"]] if "apps" in query else [["Tesla T4", "15360", "13000"]]

    monkeypatch.setattr(card, "_smi", smi)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = card.look_at("0")
    assert found == Card("0", "Tesla T4", 15360 * MIB, 13000 * MIB, {4711: 2 * GIB})
    assert found.kind == "t4" and found.is_taken
    monkeypatch.setattr(card, "_smi", lambda entry, query: [])
    with pytest.raises(UserError, match="llmsys doctor"):
        card.look_at("0")


def test_nvml_tells_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=15 * GIB, free=15 * GIB),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=7, usedGpuMemory=None)],
        nvmlDeviceGetName=lambda handle: b"Tesla T4",
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert card.look_at("3") == Card("3", "Tesla T4", 15 * GIB, 15 * GIB, {7: 0})


def _place(monkeypatch: pytest.MonkeyPatch, found: Card) -> None:
    monkeypatch.setattr(card, "installed_cards", lambda: None)
    monkeypatch.setattr(card, "machine_has_gpus", lambda: True)
    monkeypatch.setattr(card, "look_at", lambda entry: found)
    monkeypatch.setattr(card, "LOOK_AGAIN_S", 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(start, "require_engine", lambda step, python: None)


# ---- one process


class _Worker:
    """Stands where the worker's process would be."""

    def __init__(self, ends: Callable[[Path], None]) -> None:
        self.ends, self.folder, self.env = ends, Path(), {}

    def __call__(
        self, command: list[str], console: Console, *, env: Any, log: Path, timeout_s: float
    ) -> None:
        assert command[1:3] == ["-m", "llmsys_exp.workers.dryrun"] and timeout_s == start.TIMEOUT_S
        self.folder, self.env = Path(command[3]), dict(env)
        self.job = json.loads((self.folder / "job.json").read_text())
        self.asked = json.loads((self.folder / "dryrun.json").read_text())
        self.ends(self.folder)


def _leaves_a_result(folder: Path) -> None:
    (folder / "results").mkdir()
    told = {
        "status": "ok", "rank": 1, "world_size": 1, "device": "Tesla T4", "limit_bytes": 5, "oom": None,
        "phases": {"step": {"allocated_bytes": 7}}, "peak_reserved_bytes": 9, "device_used_bytes": 10,
        "host": {"peak_rss_bytes": 11, "pinned_bytes": None}, "step_s": [0.5], "seconds": 2.0,
    }  # fmt: skip
    (folder / "results/dryrun.json").write_text(json.dumps(told))


def test_the_worker_gets_the_job_with_random_weights_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    worker = _Worker(_leaves_a_result)
    monkeypatch.setattr(start, "run_shown", worker)
    outcome = dry_run(plan, Bench(sys.executable, T4, 12 * GIB), QUIET, rank=1)
    assert worker.job["config"]["model"]["weights"] == "random"
    assert plan.config.model.weights.value == "pretrained"  # the user's job is as it was
    assert worker.job["resolved"]["device"] == "cuda" and worker.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert worker.asked == {"rank": 1, "limit_bytes": 12 * GIB}
    assert outcome.survived and outcome.held_bytes("step") == 7 and outcome.host_peak_bytes == 11
    assert not worker.folder.exists()


def test_a_worker_that_the_kernel_ends_is_an_outcome_and_a_bug_is_none(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fails(kind: str) -> _Worker:
        def end(folder: Path) -> None:
            raise JobError("It failed", kind=kind, where=str(folder / "log.txt"))

        worker = _Worker(end)
        monkeypatch.setattr(start, "run_shown", worker)
        return worker

    fails("oom_host")
    outcome = dry_run(plan, Bench(sys.executable, T4, None), QUIET)
    assert not outcome.survived and outcome.ending().startswith("main memory runs out")
    worker = fails("bug")
    with pytest.raises(JobError, match="log"):
        dry_run(plan, Bench(sys.executable, T4, None), QUIET)
    assert (worker.folder / "job.json").is_file()  # beside the log that the message names


# ---- searches


def test_the_smallest_limit_is_found_between_allocated_and_reserved(plan: Plan) -> None:
    true_limit = int(2.34 * GIB)
    tried: list[int] = []

    def run(at: Plan, limit_bytes: int | None) -> Outcome:
        assert limit_bytes is not None
        tried.append(limit_bytes)
        return outcome_of(limit_bytes >= true_limit)

    found = search("limit", plan, outcome_of(), run)
    assert found.failed < true_limit <= found.value < true_limit + 16 * MIB
    assert len(tried) <= 10 and all(2 * GIB <= one <= 3 * GIB for one in tried)
    assert search("limit", plan, outcome_of(False), run).value is None
    for budget, fits in ((2 * GIB, False), (3 * GIB, True)):
        small = replace(plan, verdict=replace(plan.verdict, budget_bytes=budget))
        assert DryRun(small, outcome_of(), Bench("python", T4, None), found).fits is fits


@pytest.mark.parametrize("true_size", [1, 9, 50, 52])
def test_the_largest_micro_batch_is_found_from_the_forecast(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, true_size: int
) -> None:
    def resolved(config: Config) -> Plan:
        verdict = replace(plan.verdict, fits=config.training.micro_batch <= 50)
        return replace(plan, config=config, verdict=verdict)

    monkeypatch.setattr("llmsys_exp.dryrun.search.resolve", resolved)
    tried: list[int] = []

    def run(at: Plan, limit_bytes: int | None) -> Outcome:
        tried.append(at.config.training.micro_batch)
        return outcome_of(at.config.training.micro_batch <= true_size)

    found = search("micro_batch", plan, outcome_of(true_size >= 2), run)
    assert (found.value, found.failed, found.forecast) == (true_size, true_size + 1, 50)
    assert len(tried) == len(set(tried)) and 2 not in tried  # the first run was of 2
    assert len(tried) <= (4 if true_size >= 50 else 10)  # the forecast is hardly ever far off


def test_the_longest_sequence_ends_where_the_positions_do(plan: Plan) -> None:
    def run(at: Plan, limit_bytes: int | None) -> Outcome:
        return outcome_of()

    found = search("length", plan, outcome_of(), run)
    assert (found.value, found.failed) == (512, None)  # it has no more positions
    nothing = search("length", plan, outcome_of(False), lambda at, limit_bytes: outcome_of(False))
    assert nothing.value is None


# ---- the command line


def test_flags_of_tiers_are_taken_out_and_checked() -> None:
    options, rest = split_tier_options(["a=1", "--tier", "dryrun", "--rank=3", "--search", "limit", "--json"])
    assert (options.name, options.rank, options.search, options.shared) == ("dryrun", 3, "limit", False)
    assert rest == ["a=1", "--json"]
    assert split_tier_options(["tier=dryrun", "--allow-shared"])[0].shared
    for wrong, said in {
        ("--tier", "dryrum"): "Did you mean dryrun",
        ("--tier", "formula", "--rank", "1"): "--rank goes with --tier simulate or --tier dryrun",
        ("--search", "limit"): "--search goes with --tier dryrun.*Leave --search out",
        ("--rank", "-1"): "--rank -1 is not a rank",
        ("--tier", "estimate", "--allow-shared"): "goes with --tier dryrun",
        ("--tier", "dryrun", "--rank", "one"): "is not a rank",
    }.items():
        with pytest.raises(UserError, match=said):
            split_tier_options(list(wrong))
    assert split_tier_options(["--rank", "1", "--snapshot=s.pickle"])[0].name == "simulate"
    with pytest.raises(UserError, match="tier estimate"):
        check_swept(split_tier_options(["--tier=estimate"])[0])
    with pytest.raises(UserError, match="It has 2 ranks, 0 to 1"):
        check_rank(TierOptions(rank=2), compose_config(["hardware=t4", "hardware.gpus_per_node=2"]))


def test_every_tier_of_the_planner_is_one_of_the_command_line() -> None:
    from planner.forecasting import TIERS as PLANNERS

    assert set(PLANNERS) - {"auto"} <= set(TIERS)  # settings are chosen for families that are known


@pytest.mark.parametrize("survived", [True, False])
def test_a_dry_run_stands_beside_the_formula(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: list[str], survived: bool
) -> None:
    def run(plan: Plan, ask: DryAsk, console: Console) -> DryRun:
        assert ask == DryAsk(rank=0, search=None, shared=False)
        return DryRun(plan, outcome_of(survived, limit_bytes=12 * GIB), Bench("python", T4, 12 * GIB))

    monkeypatch.setattr("llmsys_exp.dryrun.run.run_dry", run)
    code = plan_verb.run([*small, "--tier", "dryrun"])
    text = capsys.readouterr().out
    assert code == (0 if survived else EXIT_DOES_NOT_FIT)
    ending = (
        "It gets through" if survived else "Memory runs out in backward, when 2.00 GiB more were asked for"
    )
    assert f"{ending} with the 12.00 GiB that it may take." in text
    for row in ("load", "engine start", "forward", "backward", "step", "peak, allocated", "reserved"):
        assert any(line.strip().startswith(row) and line.rstrip().endswith("%") for line in text.splitlines())
    assert plan_verb.run([*small, "--tier=dryrun", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["forecast"]["tier"] == "formula" and told["dryrun"]["tier"] == "dryrun"
    assert told["dryrun"]["survived"] is survived
    assert told["dryrun"]["phases"]["step"]["peak_allocated_gib"] == 2.0


def test_a_dry_run_on_the_cpu_tells_what_is_held_and_nothing_of_a_limit(plan: Plan) -> None:
    on_cpu = replace(plan, config=copy_of(plan.config))
    on_cpu.config.hardware.gpu = "cpu"
    told = replace(outcome_of(), device="cpu")
    dry = DryRun(on_cpu, told, Bench("python", None, None))
    assert not dry.is_conclusive and "peaks are not seen" in dry.notes[0]
    rows = dryrun_rows(dry)
    assert rows[0][0] == "load, at its end" and len(rows) == 4
    assert all(row[1] and row[2] == GIB for row in rows)


def test_the_estimate_stands_beside_the_formula_too(
    small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_verb.run([*small, "--tier", "estimate", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["estimate"]["peak_gib"] == pytest.approx(told["forecast"]["peak_allocated_gib"], rel=0.2)


def test_a_search_is_told_in_one_line(plan: Plan) -> None:
    stream = io.StringIO()
    found = Found("micro_batch", 2, 3, 97)
    show_dryrun(Console(stream), DryRun(plan, outcome_of(), Bench("python", T4, None), found))
    assert (
        f"Largest micro-batch that survives: 2; 3 fails. The formula says {found.forecast}."
        in stream.getvalue()
    )
