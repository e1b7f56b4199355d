"""The command line as users and scripts meet it: grammar, texts, exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import llmsys

HEAVY = (
    "torch",
    "transformers",
    "deepspeed",
    "peft",
    "datasets",
    "sglang",
    "pandas",
    "numpy",
    "rich",
    "matplotlib",
)


def test_help_names_every_verb_and_needs_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llmsys_exp", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    for verb in ("plan", "train", "infer", "export", "runs", "doctor"):
        assert f"  {verb} " in done.stdout


@pytest.mark.parametrize("verb", ["plan", "train", "infer", "export", "runs", "doctor"])
def test_every_verb_has_help(verb: str, tmp_path: Path) -> None:
    done = llmsys(verb, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"llmsys {verb} - " in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_help_of_a_verb_lists_groups_options_and_settings(tmp_path: Path) -> None:
    text = llmsys("plan", "--help", cwd=tmp_path).stdout
    for expected in (
        "smollm2_135m_instruct",
        "a100_80gb",
        "qlora",
        "stage3",
        "reduce_bucket_size",
        "quickstart",
    ):
        assert expected in text


def test_an_unknown_verb_gets_the_closest(tmp_path: Path) -> None:
    done = llmsys("trian", cwd=tmp_path)
    assert done.returncode == 2
    assert "'trian' is not a known verb" in done.stderr
    assert "Did you mean train?" in done.stderr


def test_plan_answers_with_verdict_reason_and_settings_and_writes_nothing(tmp_path: Path) -> None:
    done = llmsys("plan", "experiment=quickstart", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] in ("fits", "tight", "not compared with a limit")
    assert "GiB" in lines[1]
    assert "Largest part:" in lines[2]
    assert "zero.stage" in done.stdout
    assert "\x1b[" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_plan_as_json_holds_choices_forecast_and_verdict(tmp_path: Path) -> None:
    done = llmsys("plan", "experiment=quickstart", "--json", cwd=tmp_path)
    plan = json.loads(done.stdout)
    assert {"choices", "forecast", "verdict", "overrides"} <= set(plan)
    assert plan["overrides"] == ["experiment=quickstart"]
    assert all(choice["reason"] for choice in plan["choices"])
    assert not list(tmp_path.iterdir())


def test_plan_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from llmsys_exp.cli.main import run\n"
        "code = run(['plan', 'experiment=quickstart'])\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_job_that_does_not_fit_says_so_with_figures_and_a_fix(tmp_path: Path) -> None:
    job = ["model=llama2_7b", "method=full", "hardware=rtx3090", "zero=stage0", "offload=none"]
    done = llmsys("plan", *job, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.startswith("does not fit\n")
    assert "GiB too little." in done.stdout


@pytest.mark.parametrize(("policy", "code"), [("error", 3), ("skip", 3)])
def test_the_gate_stops_a_job_that_does_not_fit(policy: str, code: int, tmp_path: Path) -> None:
    job = ["model=mlp_fashion_mnist", "model.layers=[64,100000,100000,10]", "data=fashion_mnist_standin"]
    job += ["method=full", "hardware=rtx3090", "zero=stage0", "offload=none", "steps=[train]"]
    done = llmsys("train", *job, f"gate={policy}", cwd=tmp_path)
    assert done.returncode == code
    assert "Not started, because it would run out of memory" in done.stderr
    assert "Run it anyway with gate=warn." in done.stderr
    assert not list(tmp_path.iterdir())


def test_cfg_prints_the_composed_configuration(tmp_path: Path) -> None:
    done = llmsys("train", "experiment=quickstart", "seed=7", "--cfg", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "name: quickstart\nseed: 7\n" in done.stdout
    assert "hydra:" not in done.stdout
    part = llmsys("train", "--cfg", "job", "--package", "zero", "zero=stage3", cwd=tmp_path)
    assert "stage: 3" in part.stdout
    assert not list(tmp_path.iterdir())


def test_info_shows_how_the_configuration_came_about(tmp_path: Path) -> None:
    done = llmsys("plan", "experiment=quickstart", "--info", "defaults-tree", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "experiment: quickstart" in done.stdout
    assert not list(tmp_path.iterdir())


def test_slips_end_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    for flags in ([], ["--cfg", "job"], ["-m"]):
        done = llmsys("plan", "zero.stag=3", "model=llama2_7", *flags, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "2 settings need a change:" in done.stderr
        assert "Did you mean zero.stage?" in done.stderr
        assert "Did you mean llama2_7b?" in done.stderr
        assert "Traceback" not in done.stdout + done.stderr


def test_an_unknown_flag_gets_the_closest(tmp_path: Path) -> None:
    done = llmsys("plan", "--jsn", cwd=tmp_path)
    assert done.returncode == 2
    assert "Did you mean --json?" in done.stderr


def test_errors_are_json_where_json_was_asked_for(tmp_path: Path) -> None:
    done = llmsys("plan", "zero.stag=3", "--json", cwd=tmp_path)
    assert done.returncode == 2
    content = json.loads(done.stdout)
    assert content["kind"] == "ConfigError"
    assert "Did you mean zero.stage?" in content["error"]


def test_a_sweep_plans_every_point_and_reports_those_it_cannot(tmp_path: Path) -> None:
    sweep = ["model=mlp_fashion_mnist", "data=fashion_mnist_standin", "method=full"]
    done = llmsys("plan", "-m", *sweep, "hardware=v100_16gb,h100", "training.dtype=fp16,bf16", cwd=tmp_path)
    assert done.returncode == 2
    assert ": 3 fit, 1 failed." in done.stdout
    assert " hardware=v100_16gb training.dtype=bf16): " in done.stderr and "error: point 2 (" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_sweep_as_json_is_one_object_a_line(tmp_path: Path) -> None:
    done = llmsys("plan", "-m", "--json", "experiment=quickstart", "seed=1,2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seeds = [json.loads(line)["overrides"][-1] for line in done.stdout.splitlines()]
    assert seeds == ["seed=1", "seed=2"]


def test_an_experiment_of_the_users_own_is_found_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    file = folder / "own.yaml"
    file.write_text("# @package _global_\nname: own\nzero:\n  stage: 3\n", encoding="utf-8")
    good = llmsys("plan", "--config-dir", "mine", "experiment=own", "--json", cwd=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    file.write_text("# @package _global_\nname: own\nzero:\n  stag: 3\n", encoding="utf-8")
    bad = llmsys("plan", "--config-dir", "mine", "experiment=own", cwd=tmp_path)
    assert bad.returncode == 2
    assert "zero.stag is not a setting (mine/experiment/own.yaml, line 4)" in bad.stderr


UNUSABLE = {
    "missing data": (["data.train=rows.json"], "There is no such file (data.train=rows.json)"),
    "missing model": (["model=gpt2"], "The weights of openai-community/gpt2 are not on this machine"),
    "missing model folder": (["model.path=nowhere"], "There is no such model folder (model.path=nowhere)"),
    "missing interpreter": (["launcher.python=/no/python"], "/no/python is not a Python interpreter"),
    "unknown launcher": (["launcher.name=deepsped"], "Did you mean deepspeed?"),
    "two machines": (["hardware.nodes=2"], "spans 2 machines"),
    "export alone": (["steps=[export]"], "has nothing to merge without the step train"),
    "quantize alone": (["steps=[train,quantize]"], "nothing to quantise without the step export before it"),
    "no steps": (["steps=[]"], "steps is empty"),
    "unusable name": (["name=../x"], "'../x' cannot be the name of a folder"),
    "no prompts": (["inference.prompts=null"], "inference.prompts has no value"),
    "unknown gpu": (["hardware.gpu=h300"], "'h300' is not a known GPU", "Did you mean h200?"),
    "batch that does not divide": (
        ["training.global_batch=15"],
        "training.global_batch=15 is not a multiple of",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_cannot_run_is_refused_before_there_is_a_folder(
    case: tuple[list[str], str], tmp_path: Path
) -> None:
    overrides, *expected = case
    done = llmsys(
        "train", "experiment=quickstart", *overrides, cwd=tmp_path, env={"HF_HOME": str(tmp_path / "none")}
    )
    assert done.returncode == 2, done.stderr
    for text in expected:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_output_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = llmsys("train", "experiment=quickstart", "paths.outputs=file", cwd=tmp_path)
    assert done.returncode == 2
    assert "Cannot write: Not a directory" in done.stderr
    assert "paths.outputs=FOLDER" in done.stderr


def test_ctrl_c_stops_everything_with_one_line_and_leaves_no_manifest(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    # Stands for an interpreter whose workers never end.
    fake.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then exit 0; fi\necho $$ > {tmp_path}/pid\nexec sleep 60\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)
    job = ["experiment=quickstart", f"launcher.python={fake}", "paths.outputs=out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "llmsys_exp", "train", *job],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pid_file = tmp_path / "pid"
    end = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text(encoding="utf-8").strip()) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "Interrupted: everything started has been stopped."
    assert not Path(f"/proc/{pid_file.read_text(encoding='utf-8').strip()}").exists()
    [folder] = (tmp_path / "out" / "quickstart").iterdir()
    assert (folder / "job.json").exists()
    assert not (folder / "manifest.json").exists()
    listed = llmsys("runs", "out", "--json", cwd=tmp_path)
    assert [row["state"] for row in json.loads(listed.stdout)] == ["stopped"]


def test_doctor_reports_as_text_and_as_json(tmp_path: Path) -> None:
    report = json.loads(llmsys("doctor", "--json", cwd=tmp_path).stdout)
    assert {"machine", "versions", "engines", "gpus", "memory_bytes", "disk_bytes"} <= set(report)
    assert "hydra-core" in llmsys("doctor", cwd=tmp_path).stdout


def test_runs_says_how_to_start_one_when_there_is_none(tmp_path: Path) -> None:
    done = llmsys("runs", cwd=tmp_path)
    assert (done.returncode, "llmsys train experiment=quickstart" in done.stdout) == (0, True)
    assert llmsys("runs", "nowhere", cwd=tmp_path).returncode == 2


def test_export_needs_a_run_folder(tmp_path: Path) -> None:
    assert "takes one run folder" in llmsys("export", cwd=tmp_path).stderr
    assert "This is not a run folder" in llmsys("export", ".", cwd=tmp_path).stderr


def test_no_color_without_a_terminal_and_none_when_asked(tmp_path: Path) -> None:
    done = llmsys("plan", "zero.stag=3", cwd=tmp_path, env={"NO_COLOR": "1"})
    assert "\x1b[" not in done.stderr
