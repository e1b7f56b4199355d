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

from llmsys_exp.cli import plan as plan_verb
from llmsys_exp.cli.plan_tiers import TIERS, check_tier, split_tier_options
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import GatePolicy, GateTier
from llmsys_exp.config.tree import copy_of
from llmsys_exp.dryrun import card, gate, start
from llmsys_exp.dryrun.card import Card
from llmsys_exp.dryrun.checks import DryAsk, check_ask
from llmsys_exp.dryrun.outcome import Outcome
from llmsys_exp.dryrun.run import DryRun
from llmsys_exp.dryrun.search import Found, search
from llmsys_exp.dryrun.start import Bench, dry_run, make_bench
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, DoesNotFit, JobError, UserError
from llmsys_exp.plan import Plan, resolve
from llmsys_exp.report.console import Console
from llmsys_exp.report.tier_text import dryrun_rows, show_dryrun
from llmsys_exp.sweeps.gate import dryrun as sweep_dryrun
from llmsys_exp.sweeps.gate.outcomes import Outcome as PointOutcome
from planner.units import GIB, MIB

SHAPE = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000, "max_position_embeddings": 512,
}  # fmt: skip
"""A small model, so that a plan takes a blink."""
SMALL = (
    "model=local", "hardware=t4", "method=lora", "zero.stage=2", "offload=none", "data.max_length=128",
    "training.gradient_checkpointing=false", "training.micro_batch=2", "data.train=x",
)  # fmt: skip
T4 = Card("0", "Tesla T4", 15 * GIB, int(14.8 * GIB), {})
QUIET = Console(io.StringIO())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a small job."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    return [*SMALL, f"model.path={folder}"]


@pytest.fixture(scope="module")
def plan(small: list[str]) -> Plan:
    """The same, settled."""
    return resolve(compose_config(small))


def outcome_of(survived: bool = True, *, peak_bytes: int = 2 * GIB, **more: Any) -> Outcome:
    """What a run on a GPU would have told."""
    phase = {"allocated_bytes": GIB, "peak_allocated_bytes": peak_bytes, "peak_reserved_bytes": 3 * GIB}
    oom = None if survived else {"kind": "oom_gpu", "moment": "backward", "asked": "2.00 GiB"}
    phases = dict.fromkeys(("load", "engine start", "forward", "backward", "step"), phase)
    return Outcome(survived, 0, 1, "Tesla T4", phases=phases, peak_reserved_bytes=3 * GIB, oom=oom, **more)


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


@pytest.mark.parametrize("true_size", [1, 40])
def test_the_largest_micro_batch_is_found_from_the_forecast(plan: Plan, true_size: int) -> None:
    tried: list[int] = []

    def run(at: Plan, limit_bytes: int | None) -> Outcome:
        tried.append(at.config.training.micro_batch)
        return outcome_of(at.config.training.micro_batch <= true_size)

    found = search("micro_batch", plan, outcome_of(true_size >= 2), run)
    assert (found.value, found.failed) == (true_size, true_size + 1)
    assert len(tried) == len(set(tried)) <= 14 and 2 not in tried  # the first run was of 2
    assert found.forecast > 40


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
        ("--rank", "1"): "--rank goes with --tier simulate or --tier dryrun",
        ("--tier", "estimate", "--allow-shared"): "goes with --tier dryrun",
        ("--tier", "dryrun", "--rank", "one"): "is not a rank",
    }.items():
        with pytest.raises(UserError, match=said):
            split_tier_options(list(wrong))
    for more in ({"swept": True}, {"serves": True}):
        with pytest.raises(UserError, match="tier estimate"):
            check_tier(split_tier_options(["--tier=estimate"])[0], **more)


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


# ---- the gate


def _near(plan: Plan, *, tier: str = "dryrun", policy: str = "error") -> Plan:
    config = copy_of(plan.config)
    config.gate.tier, config.gate.policy = GateTier[tier], GatePolicy[policy]
    return replace(plan, config=config, verdict=replace(plan.verdict, label="tight"))


def _gate(plan: Plan, survived: bool, *, is_short: bool = False) -> tuple[list[str], int]:
    ran: list[Plan] = []
    limit = 20 * GIB if is_short else 12 * GIB

    def run(at: Plan, ask: DryAsk, console: Console) -> DryRun:
        ran.append(at)
        return DryRun(at, outcome_of(survived), Bench("python", T4, limit))

    return gate.pass_gate(plan, QUIET, run=run), len(ran)


def test_a_job_near_its_limit_is_decided_by_its_dry_run(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.delenv(gate.TAG, raising=False)
    assert _gate(_near(plan), True) == ([], 1)
    with pytest.raises(DoesNotFit, match="in its dry run memory runs out in backward"):
        _gate(_near(plan), False)
    assert "memory runs out" in _gate(_near(plan, policy="warn"), False)[0][0]
    assert _gate(_near(plan), False, is_short=True) == (
        ["The dry run says nothing of the limit: see above"],
        1,
    )


def test_no_dry_run_where_none_is_due(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.delenv(gate.TAG, raising=False)
    sure = replace(_near(plan), verdict=replace(plan.verdict, label="fits"))
    for other in (sure, _near(plan, tier="formula"), _near(plan, policy="off")):
        assert _gate(other, False) == ([], 0)
    monkeypatch.setenv(gate.TAG, "a sweep's")  # it was dry-run before the sweep began
    assert _gate(_near(plan), False) == ([], 0)
    monkeypatch.delenv(gate.TAG)
    on_cpu = copy_of(_near(plan).config)
    on_cpu.hardware.gpu = "cpu"
    with pytest.raises(UserError, match="On the CPU a dry run has no limit"):
        gate.is_wanted(on_cpu)


class _Resolved:
    """A point of a sweep, as far as its dry run looks at it."""

    def __init__(self, tier: str) -> None:
        self.settings, self._tier = (), tier

    def value(self, key: str) -> str:
        assert key == "gate.tier"
        return self._tier

    def config(self) -> str:
        return "its configuration"


def _point(*, fits: bool = True, sure: bool = False, where: str = "gpu") -> PointOutcome:
    label = "fits" if sure else "tight" if fits else "does not fit"
    figures = {"label": label, "where": where, "needed_gib": 11.9, "limit_gib": 12.0, "tier": "formula"}
    return PointOutcome(fits, sure, figures)


def test_points_near_the_limit_are_dry_run_once_for_each_plan(plan: Plan) -> None:
    near, beside = _point(), _point()
    outcomes = [near, near, _point(sure=True), _point(fits=False), _point(where="disk"), beside]
    points = [_Resolved("dryrun")] * 5 + [_Resolved("formula")]
    told: list[str] = []
    ran: list[Any] = []

    def run(survived: bool, limit: int = 12 * GIB) -> Callable[[Any], DryRun]:
        def dry(config: Any) -> DryRun:
            ran.append(config)
            return DryRun(plan, outcome_of(survived), Bench("python", T4, limit))

        return dry

    found = sweep_dryrun.confirmed(points, outcomes, tell=told.append, run=run(True))
    assert ran == ["its configuration"] and told[0].startswith("Dry run 1 of 1")
    assert found[0] is found[1] and found[2:] == outcomes[2:]
    assert (found[0].fits, found[0].sure) == (True, True)
    assert {**found[0].figures, "dryrun": ""} == {
        "label": "fits", "where": "gpu", "needed_gib": 3.0, "limit_gib": 12.0, "tier": "dryrun", "dryrun": "",
    }  # fmt: skip
    dead = sweep_dryrun.confirmed(points, outcomes, run=run(False))[0]
    assert (dead.fits, dead.figures["label"], dead.figures["needed_gib"]) == (False, "does not fit", None)
    unknown = sweep_dryrun.confirmed(points, outcomes, run=run(False, 20 * GIB))[0]
    assert unknown.fits and not unknown.sure and "a GPU too small to tell" in unknown.figures["dryrun"]
