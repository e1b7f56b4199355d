"""Calibration: what runs say of a machine, what is kept of it, and which plans count with it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import planner
from llmsys_exp.calibrate import apply, jobs
from llmsys_exp.calibrate.apply import calibration_of
from llmsys_exp.calibrate.device import Device, device_of, devices_here, kind_of
from llmsys_exp.calibrate.entry import Entry, Figure, figure_of, read_entry
from llmsys_exp.calibrate.measure import ONE, SEVERAL, read_runs
from llmsys_exp.calibrate.rows import NotUsed, read_row
from llmsys_exp.calibrate.store import read_entries, save_entry
from llmsys_exp.cli import calibrate, main
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.plain import to_plain
from llmsys_exp.errors import DoesNotFit, UserError
from llmsys_exp.plan import resolve
from llmsys_exp.report.console import Console
from llmsys_exp.runs.manifest import sealed
from planner.forecasting import device_extra_bytes
from planner.speed import step_time
from planner.training_case import Calibration
from planner.units import GIB

NAME, DRIVER = "NVIDIA H200", "580.159.04"
H200 = Device(NAME, f"driver {DRIVER}", "h200")
TINY = ("model=local", "model.path=shipped:data/small_llama")
OVERRIDES = (
    *(*TINY, "hardware=h200", "method=lora", "zero=stage0", "offload=none", "data.max_length=512"),
    *("training.micro_batch=4", "training.grad_accum=1", "training.dtype=bf16", "data.train=rows.json"),
    "training.gradient_checkpointing=false",
)


@cache
def settled() -> dict[str, Any]:
    return to_plain(resolve(compose_config(list(OVERRIDES))).config)


def manifest(folder: Path, number: int, **changes: Any) -> Path:
    """Write the manifest of a run on an H200 whose context took 0.9 GiB, and 1.3 with what came later."""
    config = settled()
    ranks, first, last = changes.get("ranks", 1), changes.get("first", 0.9), changes.get("last", 1.3)
    phases = [
        {"phase": name, "reserved_bytes": 5 * GIB, "device_used_bytes": int((5 + outside) * GIB)}
        for name, outside in (("model loaded", first), ("after first step", last), ("evaluate", 9.0))
    ]
    tokens = changes.get("tokens", 8 * ranks * 4 * 512)
    train = {
        "steps": 8, "tokens": tokens, "dtype": "bf16", "memory_per_rank": [{"phases": phases}] * ranks,
        "speed": {"tokens_per_s": tokens / 8 / changes.get("step_s", 0.1)},
    }  # fmt: skip
    card = {"index": 0, "name": changes.get("name", NAME), "memory_bytes": 143771 << 20, "in_run": True}
    content = {
        "id": f"tiny/{number}", "config": deepcopy(config), "results": {"train": train},
        "machine": {"cpu_name": "X", "cpus": 2, "driver": DRIVER, "gpus": [card]},
    } | changes.get("whole", {})  # fmt: skip
    content["config"]["hardware"]["gpus_per_node"] = ranks
    file = folder / "tiny" / str(number) / "manifest.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**sealed(content), **changes.get("edit", {})}), encoding="utf-8")
    (file.parent / "job.json").write_text("{}", encoding="utf-8")
    return file


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with an H200 and a user of its own; calibrations are on."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("LLMSYS_CALIBRATION", raising=False)
    monkeypatch.chdir(tmp_path)
    for module in ("llmsys_exp.calibrate.device", "llmsys_exp.cli.calibrate", "llmsys_exp.calibrate.jobs"):
        monkeypatch.setattr(f"{module}.devices_here", lambda: (H200, Device("X", "2 cores", "cpu")))
    apply._entry.cache_clear()
    monkeypatch.setattr(apply, "_is_left_aside", False)
    yield tmp_path / "config" / "llmsys" / "calibration.json"
    apply._entry.cache_clear()


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [("NVIDIA H200", 140.4, "h200"), ("NVIDIA A100-SXM4-40GB", 40, "a100-40gb"), ("NVIDIA A100-SXM4-80GB", 80, "a100-80gb"),
     ("Tesla T4", 15, "t4"), ("NVIDIA L4", 22.5, "l4"), ("NVIDIA L40S", 45, "l40s"), ("NVIDIA RTX A6000", 48, "a6000"),
     ("NVIDIA GeForce RTX 4090", 24, "rtx4090"), ("NVIDIA GeForce RTX 4080 SUPER", 16, ""), ("NVIDIA H100 NVL", 94, ""),
     ("Tesla V100-SXM2-32GB", 32, "v100-32gb"), ("NVIDIA H100 80GB HBM3", 79.65, "h100"), ("NVIDIA A10G", 22.5, "a10g")],
)  # fmt: skip
def test_cards_are_known_by_name_and_memory(name: str, gib: float, kind: str) -> None:
    assert kind_of(name, int(gib * GIB)) == kind


def test_every_gpu_of_the_table_is_known_by_its_own_title() -> None:
    rows = {kind: planner.gpu(kind) for kind in planner.gpu_names() if kind != "cpu"}
    assert {kind: kind_of(row.title, int(row.memory_gib * GIB)) for kind, row in rows.items()} == {
        kind: kind for kind in rows
    }


def test_medians_of_runs(tmp_path: Path) -> None:
    files = [manifest(tmp_path, n, first=0.9 + n / 100, last=1.3 + n / 50) for n in range(3)]
    files += [manifest(tmp_path, n, ranks=2, last=1.9 + n / 100) for n in (3, 4)]
    found = read_runs(files, "2026-11-30")
    entry = found.entries[H200]
    assert entry.constants["context_gib"] == Figure(0.91, 3, 0.9, 0.92)
    assert entry.constants["after_context_gib"] == Figure(0.41, 3, 0.4, 0.42)
    assert entry.constants["nccl_gib"].value == pytest.approx(1.935 - 1.32)
    assert (entry.outside_gib[ONE].runs, entry.outside_gib[SEVERAL].runs) == (3, 2)
    assert entry.outside_gib[ONE].slack == pytest.approx(0.02)
    assert entry.speed["bf16"].runs == 5
    assert not found.left_out
    assert not found.no_speed


def test_the_speed_factor_is_measured_over_forecast(tmp_path: Path) -> None:
    plan = resolve(compose_config(list(OVERRIDES)))
    assert plan.step_s
    row = read_row(manifest(tmp_path, 1, step_s=plan.step_s * 1.5))
    assert row.speed == pytest.approx(1.5, rel=1e-6)
    # a job that was planned for a smaller card and ran here counts as one of this card
    smaller = deepcopy(settled())
    smaller["hardware"]["gpu"] = "t4"
    other = read_row(manifest(tmp_path, 2, step_s=plan.step_s * 1.5, whole={"config": smaller}))
    assert (other.device, other.speed) == (H200, row.speed)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"edit": {"name": "other"}}, "changed by hand"),
        ({"whole": {"results": {}}}, "trained nothing"),
        ({"whole": {"machine": {}}}, "does not tell which device"),
        ({"whole": {"machine": {"gpus": [{"name": "A", "in_run": True}, {"name": "B", "in_run": True}]}}}, "several kinds"),
        ({"whole": {"config": {"hardware": {"gpuu": 1}}}}, "not those of today"),
    ],
    ids=["edited", "no training", "no device", "two kinds", "old settings"],
)  # fmt: skip
def test_a_run_that_says_nothing_is_left_out_with_its_reason(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(NotUsed, match=why):
        read_row(manifest(tmp_path, 1, **changes))
    assert [why in reason for _, reason in read_runs([tmp_path / "tiny/1/manifest.json"], "x").left_out] == [
        True
    ]


@pytest.mark.parametrize(
    ("changes", "why"), [({"tokens": 100}, "fill 1%"), ({"name": "NVIDIA X9"}, "not in the planner's table")]
)
def test_memory_may_count_where_speed_does_not(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    row = read_row(manifest(tmp_path, 1, **changes))
    assert (row.speed, row.first_gib) == (None, pytest.approx(0.9))
    assert why in row.no_speed


def test_cut_manifests_and_shared_cards_are_left_out(tmp_path: Path) -> None:
    files = [manifest(tmp_path, n, first=first) for n, first in enumerate((0.9, 0.92, 30.0))]
    cut = manifest(tmp_path, 3)
    cut.write_text("{", encoding="utf-8")
    found = read_runs([*files, cut], "2026-11-30")
    assert len(found.entries[H200].runs) == 2
    assert sorted(reason.partition(" (")[0][:25] for _, reason in found.left_out) == [
        "This is no manifest that ",
        "something else had memory",
    ]


def test_manifests_of_version_1_are_read_and_tell_no_device(tmp_path: Path) -> None:
    old = Path(__file__).parent / "data" / "manifests" / "v1_train.json"
    [(_, reason)] = read_runs([old], "x").left_out
    assert "does not tell which device" in reason


def entry(**changes: Any) -> Entry:
    figures = {"context_gib": Figure(0.9, 3, 0.8, 1.0), "after_context_gib": Figure(0.5, 2, 0.5, 0.5)}
    more = {"nccl_gib": Figure(0.7, 1, 0.7, 0.7)}
    speed = {"bf16": Figure(1.25, 4, 1.2, 1.3)}
    whole = Entry(NAME, H200.driver, "h200", "2026-11-30", ("a/1", "a/2"), {**figures, **more}, speed)
    return replace(whole, **changes)


def test_later_plans_count_with_it_and_say_so(here: Path) -> None:
    plain = resolve(compose_config(list(OVERRIDES)))
    save_entry(here, H200.key, entry())
    found = resolve(compose_config(list(OVERRIDES)))
    assert found.step_s == pytest.approx((plain.step_s or 0) * 1.25)
    extra = 0.9 + 0.5 - planner.gpu("h200").context_gib - 0.34
    assert found.forecast.device_extra_bytes - plain.forecast.device_extra_bytes == pytest.approx(
        extra * GIB, abs=4
    )
    assert found.verdict.budget_bytes - plain.verdict.budget_bytes == pytest.approx(-extra * GIB, abs=4)
    assert found.forecast.peak_reserved_bytes == plain.forecast.peak_reserved_bytes
    [note] = [one for one in found.forecast.notes if one.startswith(apply.PREFIX)]
    assert note == (
        "Calibrated on this machine on 2026-11-30 from 2 runs: context 0.90 GiB, after context 0.50 GiB, "
        "seconds of a step x 1.25 (bf16; 1.20 to 1.30)"
    )


def test_other_devices_and_drivers_plan_as_before(here: Path) -> None:
    save_entry(here, "NVIDIA H200, driver 1.0", entry(driver="driver 1.0"))
    assert calibration_of("h200", dtype="bf16", ranks=1) is None, "the driver is another one now"
    save_entry(here, H200.key, entry())
    assert calibration_of("h100", dtype="bf16", ranks=1) is None
    fp16 = calibration_of("h200", dtype="fp16", ranks=2)
    assert fp16 is not None
    assert (fp16.speed_factor, fp16.nccl_gib) == (None, None), "one run is too few"


def test_it_is_switched_off(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_entry(here, H200.key, entry())
    assert calibration_of("h200", dtype="bf16", ranks=1)
    monkeypatch.setenv("LLMSYS_CALIBRATION", "off")
    assert calibration_of("h200", dtype="bf16", ranks=1) is None
    monkeypatch.setenv("LLMSYS_CALIBRATION", "sometimes")
    with pytest.raises(UserError, match="Set it to off or on"):
        calibration_of("h200", dtype="bf16", ranks=1)
    assert main.run(["plan", "--no-calibration", *OVERRIDES, "--json"]) == 0
    assert apply.PREFIX not in capsys.readouterr().out
    monkeypatch.setenv("LLMSYS_CALIBRATION", "on")
    apply.leave_aside()
    assert calibration_of("h200", dtype="bf16", ranks=1) is None


def test_a_calibrated_processor_has_a_forecast_of_speed(here: Path) -> None:
    cpu = Device("X", "2 cores", "cpu")
    overrides = [*TINY, "hardware=cpu", "training.micro_batch=1"]
    assert resolve(compose_config(overrides)).step_s is None
    save_entry(
        here, cpu.key, Entry("X", "2 cores", "cpu", "d", ("a",), {}, {"fp32": Figure(2.0, 2, 2.0, 2.0)})
    )
    assert (resolve(compose_config(overrides)).step_s or 0) > 0
    assert calibration_of("cpu", dtype="fp32", ranks=2) is None, "ranks share the cores"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema_version": 2, "devices": {}}', '{"schema_version": 1, "devices": {"a": 3}}', "\x00"],
)
def test_a_broken_file_is_one_message_that_says_how_to_go_on(
    text: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here.parent.mkdir(parents=True)
    here.write_text(text, encoding="utf-8")
    for arguments in (["plan", *OVERRIDES], ["calibrate"]):
        assert main.run(arguments) == 2
        said = capsys.readouterr().err
        assert "llmsys calibrate --remove" in said
        assert said.count("\n") == 1
        apply._is_left_aside = False
    assert main.run(["calibrate", "--remove"]) == 0
    assert not here.exists()
    assert main.run(["calibrate", "--remove"]) == 0


@pytest.mark.parametrize(
    "figure",
    [{"value": -1.0, "runs": 2, "low": -1.0, "high": 1.0}, {"value": 1.0, "runs": 2, "low": 2.0, "high": 3.0},
     {"value": float("nan"), "runs": 2, "low": 0, "high": 1}, {"value": 1.0}, 7, {"value": 1, "runs": 0, "low": 1, "high": 1}],
)  # fmt: skip
def test_figures_that_nobody_can_have_measured_are_refused(figure: Any) -> None:
    content = {**entry().to_dict(), "constants": {"context_gib": figure}}
    with pytest.raises(ValueError, match="context_gib"):
        read_entry(content)
    assert read_entry(json.loads(json.dumps(entry().to_dict()))) == entry()


def test_the_command_keeps_what_is_of_this_machine(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        manifest(tmp_path / "outputs", number)
    manifest(tmp_path / "outputs", 4, name="NVIDIA A100-SXM4-80GB")
    assert calibrate.run(["--from", "outputs", "--dry-run"]) == 0
    assert not here.exists()
    assert calibrate.run(["--from"]) == 0
    text = capsys.readouterr().out
    assert "Not of this machine: shown, not kept." in text
    assert list(read_entries(here)) == [H200.key]
    assert calibrate.run(["--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["devices"][H200.key]["planner"]["nccl_gib"] == 0.47
    calibrate.run([])
    assert "context, GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mesure"], "Did you mean --measure"),
        (["--show", "--remove"], "do not go together"),
        (["RUN"], "is not an argument"),
        (["--measure", "latest"], "is no setting"),
        (["--measure", "--dry-run"], "goes with --from"),
        (["--from", "nowhere"], "nowhere"),
        (["--from", "empty"], "no complete run"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    arguments: list[str], said: str, here: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=said):
        calibrate.run(arguments)


def test_measuring_needs_a_gpu_of_one_known_kind(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "machine_has_gpus", lambda: False)
    with pytest.raises(UserError, match="This machine has no GPU to measure"):
        calibrate.run(["--measure"])
    monkeypatch.setattr(jobs, "machine_has_gpus", lambda: True)
    assert jobs.gpu_here() == H200
    monkeypatch.setattr(jobs, "devices_here", lambda: (H200, Device("NVIDIA L4", "driver 1", "l4")))
    with pytest.raises(UserError, match="several kinds"):
        jobs.gpu_here()
    monkeypatch.setattr(jobs, "devices_here", lambda: (Device("NVIDIA X9", "driver 1", ""),))
    with pytest.raises(UserError, match="NVIDIA X9"):
        jobs.gpu_here()


def test_a_job_that_does_not_fit_is_left_out_of_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"seed=1"}

    def run_steps(run: Any, console: Console) -> dict[str, Any]:
        if refused & set(run.overrides):
            raise DoesNotFit("needs more")
        return {"folder": str(tmp_path / "calibrate" / run.overrides[-1])}

    monkeypatch.setattr("llmsys_exp.jobs.pipeline.run_steps", run_steps)
    commands, said = [[*OVERRIDES, f"seed={number}"] for number in (1, 2)], io.StringIO()
    done = jobs.run_jobs(commands, tmp_path, Console(said))
    assert done == [tmp_path / "calibrate" / "seed=2" / "manifest.json"]
    assert "left out: needs more" in said.getvalue()
    rows = json.loads((tmp_path / "calibrate" / "rows.json").read_text(encoding="utf-8"))
    assert len(rows) == jobs.ROWS
    with pytest.raises(UserError, match="None of the jobs fits"):
        jobs.run_jobs(commands[:1], tmp_path, Console(said))


def test_the_jobs_of_a_measurement_plan_and_fit_a_small_card(here: Path, tmp_path: Path) -> None:
    commands = jobs.commands(Device("Tesla T4", "driver 1", "t4"), 2, tmp_path, ())
    configs = [compose_config(command) for command in commands]
    assert [config.hardware.gpus_per_node for config in configs] == [1, 1, 1, 2, 2]
    assert resolve(configs[0]).verdict.fits, "the one that needs most"
    assert len(jobs.commands(H200, 1, tmp_path, ())) == 3


def test_the_planner_takes_a_calibration_as_data() -> None:
    shape = planner.model_config(planner.model_names()[0])
    case = planner.parse_training_case(
        {"hf_config": {**shape, "num_hidden_layers": 2}, "method": "full", "gpu": "h200", "world_size": 2}
    )
    measured = replace(case, calibration=Calibration(context_gib=1.0, nccl_gib=0.25, speed_factor=2.0))
    table = planner.gpu("h200").context_gib + 0.47 - 1.25
    assert device_extra_bytes(case) - device_extra_bytes(measured) == pytest.approx(table * GIB, abs=4)
    slow, fast = (step_time(one, 1, 512, 1) for one in (measured, case))
    assert float(slow.seconds) == pytest.approx(2 * float(fast.seconds))
    assert float(slow.tokens) == float(fast.tokens)


def test_a_processor_is_a_device_and_figures_of_nothing_are_none() -> None:
    assert device_of({"cpu_name": "X", "cpus": 2}) == Device("X", "2 cores", "cpu")
    assert device_of({}) is None
    assert figure_of([]) is None
    assert any(device.on_cpu for device in devices_here())
