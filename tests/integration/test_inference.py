"""The inference worker on a real model: batches, continuous batching, several runs on one engine, kill and resume."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import environment, events_of, make_job, make_model, rows

from llmsys_exp.runs.paths import RunPaths

MODULE = "llmsys_exp.workers.infer"
DRAWN = {"max_new_tokens": 8, "temperature": 0.9, "top_p": 0.95, "top_k": 40}
LONG = {"max_new_tokens": 60}
WITH_LIMITS = [{**row, "max_new_tokens": 1 + number % 7} for number, row in enumerate(rows())]
TEXT = "a red lamp\n\nand a chair\nthree\n"
CASES: dict[str, dict[str, Any]] = {
    "by-5": {"inference__batch_size": 5, "inference__sampling": DRAWN},
    "by-9": {"inference__batch_size": 9, "inference__sampling": DRAWN, "inference__order": "file"},
    "missing": {},
    "padded": {"inference__batch_size": 7, "inference__sampling": LONG},
    "bare": {"inference__template": "none", "inference__ignore_eos": True, "inference__batch_size": 2},
    "all": {"inference__batch_size": "all", "inference__sampling": LONG, "inference__compare": 4},
    "killed": {"inference__batch_size": 1, "inference__sampling": LONG},
    "adapter": {"inference__batch_size": 7, "inference__sampling": LONG},
}
"""Settings of each run, in the order in which one process does them."""


def answers(paths: RunPaths) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in paths.generations.read_text(encoding="utf-8").splitlines()]
    return sorted(found, key=lambda one: one["index"])


def texts(paths: RunPaths) -> list[str]:
    return [one["output"] for one in answers(paths)]


def figures(paths: RunPaths) -> dict[str, Any]:
    return json.loads(paths.result("infer").read_text(encoding="utf-8"))


def edit(paths: RunPaths, **changes: Any) -> None:
    job = json.loads(paths.job.read_text(encoding="utf-8"))
    paths.job.write_text(json.dumps({"engine_key": "one", **job, **changes}), encoding="utf-8")


def asks(paths: RunPaths, name: str, text: str) -> None:
    file = paths.folder / name
    file.write_text(text, encoding="utf-8")
    job = json.loads(paths.job.read_text(encoding="utf-8"))
    edit(paths, resolved={**job["resolved"], "prompts_file": str(file)})


def make_adapter(model: Path, folder: Path) -> None:
    """Write a LoRA adapter that changes the model's answers."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    weights = {}
    for layer in range(2):
        for name, outputs in (("q_proj", 64), ("v_proj", 32)):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(4, 64)
            weights[f"{place}.lora_B.weight"] = torch.randn(outputs, 4)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8}
    settings |= {"target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": str(model)}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def kill_in_the_middle(paths: RunPaths) -> int:
    """Start the worker, kill -9 it once it has some answers, and return how many it has."""
    worker = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(paths.folder)], env=environment(), stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 200
        while time.monotonic() < until and worker.poll() is None:
            if paths.generations.exists() and paths.generations.read_bytes().count(b"\n") >= 2:
                break
            time.sleep(0.02)
        assert worker.poll() is None, "it ended before it could be killed"
    finally:
        worker.kill()
        worker.wait()
    return paths.generations.read_bytes().count(b"\n")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Kill one run in the middle, then do all of them in one process."""
    base = tmp_path_factory.mktemp("infer")
    make_model(base / "model")
    made = {name: make_job(base / name, base / "model", **settings) for name, settings in CASES.items()}
    for paths in made.values():
        edit(paths)
    asks(made["bare"], "p.txt", TEXT)
    asks(made["missing"], "twice.jsonl", '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}')
    make_adapter(base / "model", base / "lora")
    resolved = json.loads(made["adapter"].job.read_text(encoding="utf-8"))["resolved"]
    edit(made["adapter"], engine_key="two", resolved={**resolved, "adapter_folder": str(base / "lora")})
    for name in ("padded", "all"):
        asks(made[name], "limits.json", json.dumps(WITH_LIMITS))
    before = kill_in_the_middle(made["killed"])
    with made["killed"].generations.open("a", encoding="utf-8") as stream:
        stream.write('{"index": 23, "outp')
    folders = "".join(f"{paths.folder}\n" for paths in made.values())
    ended = subprocess.run(
        [sys.executable, "-m", MODULE, "--stdin"],
        input=f"{folders}{base / 'nowhere'}\n",
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return {"worker": ended, "base": base, "before": before, **made}


def test_a_mistake_in_one_run_ends_no_other(done):
    found = [(Path(event["folder"]).name, event["code"]) for event in events_of(done["worker"], "done")]
    assert found == [(name, 2 if name == "missing" else 0) for name in CASES] + [("nowhere", 2)]
    errors = [event["text"] for event in events_of(done["worker"], "error")]
    assert "Two prompts have the id '1'" in errors[0] and "no job.json" in errors[1] and len(errors) == 2
    assert not done["missing"].result("infer").exists()


def test_one_engine_answers_runs_that_differ_in_prompts_and_sampling(done):
    loads = {name: figures(done[name])["time_s"]["load"] for name in CASES if name != "missing"}
    # `all` is another way to run, and its comparison ends its engine
    assert [name for name, seconds in loads.items() if seconds > 0] == ["by-5", "all", "killed", "adapter"]


def test_a_drawn_answer_hangs_on_no_neighbour_and_no_order(done):
    assert texts(done["by-5"]) == texts(done["by-9"])
    assert len({one["output"] for one in answers(done["by-5"])}) > 12
    one, other = figures(done["by-5"]), figures(done["by-9"])
    assert (one["batches"], one["order"], other["batches"], other["order"]) == (5, "length", 3, "file")


def test_continuous_batching_gives_the_answers_of_padded_batches_with_limits_of_their_own(done):
    found = figures(done["all"])
    assert found["started"]["settings"]["continuous_batching"] and found["batches"] == 1
    assert not any("does not work" in event["text"] for event in events_of(done["worker"], "note"))
    assert texts(done["all"]) == texts(done["padded"])
    assert [one["new_tokens"] for one in answers(done["all"])] == [1 + number % 7 for number in range(24)]
    assert found["compare"] == {"prompts": 4, "equal": 4, "share": 1.0, "differences": []}


def test_bare_prompts_go_on_to_the_limit_whatever_the_model_says(done):
    found = answers(done["bare"])
    assert [one["instruction"] for one in found] == ["a red lamp", "and a chair", "three"]
    assert [(one["finish"], one["new_tokens"]) for one in found] == [("length", 6)] * 3
    assert found[0]["prompt_tokens"] < 8


def test_a_killed_run_goes_on_without_asking_again(done):
    found = figures(done["killed"])
    assert found["resumed"] == done["before"] and 2 <= done["before"] < 24
    lines = done["killed"].generations.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 24 and [one["index"] for one in answers(done["killed"])] == list(range(24))
    times = [json.loads(line)["done_s"] for line in lines]
    assert times == sorted(times) and found["seconds"] >= times[-1]
    outputs = [json.loads(line) for line in done["killed"].outputs.read_text(encoding="utf-8").splitlines()]
    assert outputs == answers(done["killed"])[::10]


def test_an_adapter_is_served_over_its_base(done):
    assert figures(done["adapter"])["trained"] and not figures(done["killed"])["trained"]
    differ = [one != other for one, other in zip(texts(done["adapter"]), texts(done["killed"]), strict=True)]
    assert sum(differ) > 12


def test_figures_of_a_run_hold_together(done):
    found, every = figures(done["by-5"]), answers(done["by-5"])
    assert found["prompts"] == 24 and found["new_tokens"] == sum(one["new_tokens"] for one in every)
    assert found["tokens_per_s"] == pytest.approx(found["new_tokens"] / found["time_s"]["generate"])
    assert 0 < found["first_token_s"]["p50"] < found["latency_s"]["p50"] <= found["latency_s"]["p99"]
    assert found["prefill_tokens_per_s"] > 0 and found["decode_tokens_per_s"] > 0
    assert (
        found["engine_version"] == found["started"]["version"] and found["started"]["context_tokens"] == 256
    )
    assert found["started"]["weights_gib"] > 0 and found["cache_hit_rate"] is None
