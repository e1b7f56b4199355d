"""A GPU that ran out of memory: explained by the worker, and tried again with less by the parent."""

from __future__ import annotations

import io
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import Config, OnOom
from llmsys_exp.errors import JobError
from llmsys_exp.jobs import pipeline
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.retry import NothingSmaller, changes, keeps_checkpoints, next_plan
from llmsys_exp.plan import resolve
from llmsys_exp.plan.facts import worker_facts
from llmsys_exp.report.console import Console
from llmsys_exp.workers import events
from llmsys_exp.workers.training import oom

OUT_OF_MEMORY = JobError("The GPU ran out of memory", kind="oom_gpu")
SHAPE = {
    **{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2},
    **{
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 8000,
        "max_position_embeddings": 512,
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def config_of(model) -> Callable[..., Config]:
    """A small model, so that a plan takes a blink."""
    gpu = ["model=local", f"model.path={model}", "hardware=v100_16gb", "method=lora", "data.train=x"]
    return lambda *overrides: compose_config([*gpu, "data.max_length=128", *overrides])


@pytest.mark.parametrize(
    ("micro", "accum", "expected"), [(8, 1, (4, 2)), (6, 3, (3, 6)), (3, 1, (1, 3)), (5, 2, (2, 5))]
)
def test_a_smaller_batch_keeps_the_global_batch(config_of, micro, accum, expected) -> None:
    settings = [f"training.micro_batch={micro}", f"training.grad_accum={accum}", "zero=stage2"]
    config = config_of(*settings, "launcher.on_oom=smaller_batch")
    plan = resolve(config)
    after = next_plan(config, plan, OUT_OF_MEMORY)
    training = after.config.training
    assert (training.micro_batch, training.grad_accum) == expected
    assert training.global_batch == plan.config.training.global_batch == micro * accum
    assert after.forecast.peak_allocated_bytes < plan.forecast.peak_allocated_bytes
    reasons = {choice.key: choice.reason for choice in after.choices}
    assert reasons["training.micro_batch"].startswith(f"{micro} ran out of memory")
    assert keeps_checkpoints(plan.config, after.config)


def test_a_micro_batch_of_one_cannot_be_halved(config_of) -> None:
    config = config_of("training.micro_batch=1", "launcher.on_oom=smaller_batch")
    with pytest.raises(NothingSmaller, match="is 1 already"):
        next_plan(config, resolve(config), OUT_OF_MEMORY)


def test_a_new_plan_needs_clearly_less_and_keeps_what_was_set(config_of) -> None:
    config = config_of("launcher.on_oom=replan", "zero.stage=2", "training.global_batch=16")
    plan = resolve(config)
    after = next_plan(config, plan, OUT_OF_MEMORY)
    assert after.forecast.required_bytes < 0.95 * plan.forecast.required_bytes
    assert after.config.zero.stage == 2 and after.config.training.global_batch == 16
    assert after.config.gate.margin_gib == plan.config.gate.margin_gib
    assert changes(plan.config, after.config)


def test_a_new_plan_stays_below_what_the_worker_really_had(config_of) -> None:
    config = config_of("launcher.on_oom=replan")
    plan = resolve(config)
    failure = JobError("out of memory", kind="oom_gpu")
    had = plan.forecast.required_bytes // 2
    failure.details = {"reserved_bytes": had, "device_free_bytes": 2**20}
    assert next_plan(config, plan, failure).forecast.required_bytes < had


def test_there_is_no_new_plan_where_everything_is_set(config_of) -> None:
    config = config_of(
        *("launcher.on_oom=replan", "training.micro_batch=4", "training.grad_accum=1", "zero.stage=2"),
        *("offload=none", "training.gradient_checkpointing=false"),
    )
    with pytest.raises(NothingSmaller, match="no settings that need less than"):
        next_plan(config, resolve(config), OUT_OF_MEMORY)


FAKE_PYTHON = """#!{python}
import json, sys
from pathlib import Path

if sys.argv[1] == "-c":
    sys.exit(0)  # the check for packages: nothing is missing
folder = Path(sys.argv[-1])
job = json.loads((folder / "job.json").read_text())
if job["config"]["training"]["micro_batch"] > {fits}:
    print('@llmsys ' + json.dumps({{"event": "error", "kind": "oom_gpu", "text": "The GPU ran out of memory in: backward",
        "code": 4, "moment": "backward", "reserved_bytes": 7}}))
    print("torch.OutOfMemoryError: CUDA out of memory")
    sys.exit(1)
result = {{"steps": 1, "tokens": 1, "seconds": 1.0, "tokens_per_s": 1.0, "loss": {{"first": 1.0, "last": 1.0}}}}
(folder / "results" / "train.json").write_text(json.dumps(result))
"""


def run_fake(tmp_path: Path, model: str, *overrides: str, fits: int) -> tuple[dict[str, Any], str]:
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON.format(python=sys.executable, fits=fits), encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    rows = tmp_path / "rows.json"
    rows.write_text('[{"instruction": "a", "output": "b"}]', encoding="utf-8")
    config = compose_config(
        [
            *("model=local", f"model.path={model}", "hardware=cpu", f"data.train={rows}"),
            *("training.micro_batch=4", "training.grad_accum=1", f"launcher.python={fake}", "zero=stage2"),
            *(f"paths.outputs={tmp_path}/out", "gate=off", *overrides),
        ]
    )
    stream = io.StringIO()
    run = Run(config=config, steps=list(config.steps), command=("llmsys", "train"))
    return pipeline.run_steps(run, Console(stream)), stream.getvalue()


def test_the_pipeline_tries_again_in_the_same_folder_and_records_it(tmp_path, model) -> None:
    manifest, said = run_fake(tmp_path, model, "launcher.on_oom=smaller_batch", fits=1)
    folder = Path(manifest["folder"])
    assert [one["settings"]["training.micro_batch"] for one in manifest["attempts"]] == [4, 2]
    assert manifest["attempts"][0]["failure"] == {
        **{"kind": "oom_gpu", "text": "The GPU ran out of memory in: backward"},
        **{"moment": "backward", "reserved_bytes": 7},
    }
    assert "Attempt 3 with training.micro_batch 2 -> 1, training.grad_accum 2 -> 4" in said
    batches = [
        json.loads((folder / name).read_text(encoding="utf-8"))["train_micro_batch_size_per_gpu"]
        for name in ("ds_config.attempt1.json", "ds_config.attempt2.json", "ds_config.json")
    ]
    assert batches == [4, 2, 1]
    assert (folder / "job.attempt2.json").exists()
    assert manifest["config"]["training"]["micro_batch"] == 1
    assert len(list(folder.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("overrides", "attempts", "reason"),
    [
        ((), 1, ""),
        (("launcher.on_oom=smaller_batch", "launcher.oom_retries=1"), 2, "launcher.oom_retries=1"),
        (("launcher.on_oom=smaller_batch",), 3, "is 1 already"),
    ],
)
def test_the_last_failure_is_the_answer_when_there_is_no_further_attempt(
    tmp_path, model, overrides, attempts, reason
) -> None:
    with pytest.raises(JobError, match="ran out of memory in: backward") as caught:
        run_fake(tmp_path, model, *overrides, fits=0)
    assert (caught.value.kind, caught.value.exit_code) == ("oom_gpu", 4)
    [file] = (tmp_path / "out").glob("*/*/attempts.json")
    assert len(json.loads(file.read_text(encoding="utf-8"))) == attempts
    assert not (file.parent / "manifest.json").exists()


def failing(moment: str, error: Exception) -> Exception:
    """An error that comes up in that function of DeepSpeed's engine."""
    code = compile(f"def {moment}(error): raise error", "/x/deepspeed/runtime/engine.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    try:
        space[moment](error)
    except Exception as raised:
        return raised
    raise AssertionError


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


@pytest.mark.parametrize("moment", ["forward", "backward", "step"])
def test_the_worker_says_where_memory_ran_out_and_what_was_planned(config_of, moment, capsys) -> None:
    plan = resolve(config_of("training.micro_batch=4", "zero=stage2"))
    events.phase("train")
    oom.remember({"forecast": plan.forecast.to_dict(), "verdict": plan.verdict.to_dict()})
    error = failing(moment, OutOfMemoryError("CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has"))
    text, figures = oom.explain(error)
    assert text.startswith(f"The GPU ran out of memory in: {moment}; 1.25 GiB more were asked for")
    assert "GiB at the peak, of " in text and "Its largest part: " in text
    phases = plan.forecast.to_dict()["phases"]
    covering = {"backward": ("backward", "reduce")}.get(moment, (moment,))
    assert figures["planned_gib"] == max(v for k, v in phases.items() if k.split()[0] in covering)
    events.phase("evaluate after step 3")
    assert oom.moment_of(error.__traceback__) == f"{moment}, evaluate after step 3"


def test_main_memory_and_other_errors_are_told_apart() -> None:
    assert oom.kind_of(MemoryError()) == "oom_host"
    assert oom.kind_of(RuntimeError("DefaultCPUAllocator: can't allocate memory")) == "oom_host"
    assert oom.kind_of(RuntimeError("CUDA error: out of memory")) == "oom_gpu"
    assert oom.kind_of(RuntimeError("shape mismatch")) is None
    events.phase("load model")
    oom.remember({})
    text, figures = oom.explain(MemoryError())
    assert text == "The machine ran out of main memory in: load model."
    assert figures["kind"] == "oom_host"


def test_the_event_of_a_worker_carries_its_exit_code_and_the_figures(capsys) -> None:
    from llmsys_exp.workers.exits import _report_failure

    events.phase("train")
    oom.remember({})
    error = failing("backward", OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."))
    code = _report_failure(error)
    event = json.loads(capsys.readouterr().out.splitlines()[-1].partition("@llmsys ")[2])
    assert (event["kind"], event["code"], code) == ("oom_gpu", 4, 4)
    assert (event["moment"], event["asked"]) == ("backward", "20.00 MiB")


@pytest.mark.parametrize(
    ("limit_gib", "said"), [(15, "limited to 15.00 GiB"), (80, "limits nothing"), (None, "")]
)
def test_a_large_gpu_stands_for_a_small_one(limit_gib, said, monkeypatch, capsys) -> None:
    from types import SimpleNamespace

    from llmsys_exp.workers.ranks import enforce_memory

    shares: list[float] = []
    cuda = SimpleNamespace(
        mem_get_info=lambda device: (0, 40 * 2**30),
        set_per_process_memory_fraction=lambda share, device: shares.append(share),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    enforce_memory("cuda:0", None if limit_gib is None else limit_gib * 2**30)
    assert shares == ([15 / 40] if limit_gib == 15 else [])
    assert said in capsys.readouterr().out


def test_a_worker_is_told_the_limit_of_the_card_that_was_planned_for(config_of) -> None:
    limited = resolve(config_of("training.micro_batch=1", "hardware.enforce_memory=true"))
    limit = worker_facts(limited)["allocator_limit_bytes"]
    margin = limited.config.gate.margin_gib * 2**30
    assert limit == pytest.approx(limited.verdict.budget_bytes + margin, abs=2)
    assert worker_facts(resolve(config_of("training.micro_batch=1")))["allocator_limit_bytes"] is None


def test_failing_is_the_policy_unless_another_is_asked_for(config_of) -> None:
    assert config_of().launcher.on_oom is OnOom.fail
