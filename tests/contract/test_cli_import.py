"""`llmsys import` and `llmsys export-config` as users meet them: what is shown, written, refused; the command printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from llmsys_exp.cli.main import run

MODEL = Path(__file__).resolve().parents[2] / "experiments" / "data" / "small_llama"
YAML = f"""
model_name_or_path: {MODEL}
stage: sft
do_train: true
finetuning_type: lora
dataset: one, two
cutoff_len: 64
per_device_train_batch_size: 2
learning_rate: 1.0e-4
gradient_accumulation_steps: 2
bf16: true
output_dir: out
use_unsloth: true
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A training YAML of LLaMA-Factory."""
    path = tmp_path / "job.yaml"
    path.write_text(YAML)
    return path


def test_import_writes_an_experiment_and_the_printed_command_plans_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine" / "taken_over.yaml"
    assert run(["import", str(source), "hardware=rtx4090", "zero.overlap_comm=true", "-o", str(target)]) == 0
    shown = capsys.readouterr().out
    assert "Could not be mapped" in shown
    assert "use_unsloth" in shown
    assert "1 x rtx4090" in shown
    content = target.read_text()
    assert "#   use_unsloth: Unsloth's kernels are not used" in content
    assert "overlap_comm: true" in content
    command = shown.strip().splitlines()[-1].partition("with: llmsys ")[2]
    assert command == f"plan experiment={target}"
    assert run([*shlex.split(command), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["verdict"]["label"] == "fits"
    assert run(["import", str(source), "hardware=rtx4090", "-o", str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == content


def test_import_without_a_target_writes_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", str(source), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["written"], found["refusal"]) == ("llamafactory", None, None)
    assert found["settings"]["training.grad_accum"] == 2
    assert "hardware" in found["groups"]  # this machine's GPU, or a stand-in that is told
    assert any(note.startswith("hardware: ") for note in found["notes"])
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "import takes a file"),
        (["no/such.yaml"], "There is no such file"),
        (["{source}", "--format", "axolot"], "Did you mean axolotl"),
        (["{source}", "--fromat=axolotl"], "Did you mean --format"),
        (["{source}", "trainig.epochs=2"], "Did you mean training.epochs"),
        (["{source}", "-o", "nan"], "cannot be the name"),
        (["{source}", "-o", "a/b.txt"], "does not end in .yaml"),
        (["{source}", "experiment=quickstart"], "cannot carry"),
    ],
)
def test_import_refuses(
    source: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], what: str
) -> None:
    assert run(["import", *(one.format(source=source) for one in arguments)]) == 2
    assert what in capsys.readouterr().err


def test_export_refuses_what_changes_the_meaning_unless_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ["model=local", "model.path=shipped:data/small_llama", "hardware=rtx4090", "method=lora",
           "data=alpaca", "data.train=rows.json", "data.template=plain", "data.max_length=64"]  # fmt: skip
    path = tmp_path / "out.yaml"
    command = ["export-config", *job, "--to", "llamafactory", "-o", str(path)]
    assert run(command) == 2
    assert "data.template=plain" in capsys.readouterr().err
    assert not path.exists()
    assert run([*command, "--lossy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {Path(file).name for file in found["files"]} == {"out.yaml", "out.ds.json", "dataset_info.json"}
    assert path.is_file()
    assert run([*command, "--lossy"]) == 2  # what is there stays
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["sft_lora"], "--to is missing"),
        (["sft_lora", "sft_qlora", "--to", "ds"], "one experiment"),
        (["--to"], "--to needs a value"),
        (["--too=ds"], "Did you mean --to"),
    ],
)
def test_export_refuses(capsys: pytest.CaptureFixture[str], arguments: list[str], what: str) -> None:
    assert run(["export-config", *arguments]) == 2
    assert what in capsys.readouterr().err


def test_arguments_that_no_shell_takes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.sh").write_text("deepspeed main.py --model_name_or_path facebook/opt-1.3b\n")
    assert run(["import", str(tmp_path / "a.sh"), "--args", "it's"]) == 2
    assert "--args cannot be read" in capsys.readouterr().err


def test_an_experiment_may_lie_anywhere_but_not_be_a_bomb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "here.yaml"
    path.write_text("# @package _global_\nname: here\ntraining:\n  micro_bach: 3\n")
    assert run(["plan", f"experiment={path}"]) == 2
    assert "Did you mean training.micro_batch" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "experiment=here.yaml"]) == 2
    assert "write experiment=./here.yaml" in capsys.readouterr().err
    path.write_text("a: &x [1, 2]\nb: [*x, *x]\n")
    assert run(["plan", f"experiment={path}"]) == 2
    assert "Aliases" in capsys.readouterr().err
    assert run(["plan", f"experiment={path}x.yaml"]) == 2
    assert "no such file" in capsys.readouterr().err
