"""Through the command line on a CUDA device: GPUs by name, real figures, and memory that really runs out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import make_model, rows

from llmsys_exp.launch.gpus import installed_cards

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not installed_cards():
        pytest.skip("needs a CUDA device")
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= WIDE | {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    long_rows = [{**row, "input": row["input"] * 60} for row in rows() * 4]
    (folder / "rows.json").write_text(json.dumps(long_rows), encoding="utf-8")
    return folder


def train(model: Path, tmp_path: Path, *overrides: str, visible: str | None = None) -> dict[str, Any]:
    """Run `llmsys train` and return its manifest."""
    env = dict(os.environ) if visible is None else {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    job = ["model=local", f"model.path={model}", "model.weights=random", f"data.train={model}/rows.json"]
    job += ["hardware=h200", "hardware.nodes=1", "method=full", "zero=stage2", "data.max_length=400"]
    job += ["training.max_steps=4", "training.evaluate=false", f"paths.outputs={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "llmsys_exp", "train", "--json", *job, *overrides],
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    logs = "".join(path.read_text(encoding="utf-8")[-3000:] for path in tmp_path.glob("*/*/log.txt"))
    assert done.returncode == 0, done.stderr[-3000:] + logs
    return json.loads(done.stdout)


@pytest.mark.parametrize("launcher", ["local", "torchrun", "deepspeed"])
def test_a_gpu_named_by_its_uuid_is_the_one_that_trains(model, tmp_path, launcher) -> None:
    last = [card for card in installed_cards() or [] if not card.is_slice][-1]
    manifest = train(
        *(model, tmp_path, f"launcher={launcher}", "training.micro_batch=2", "training.grad_accum=1"),
        visible=last.uuid,
    )
    figures = manifest["results"]["train"]
    assert figures["speed"]["mfu"] > 0
    names = [row["name"] for row in manifest["measured"]["rows"]]
    assert names[:3] == ["peak allocated", "peak reserved", "device in use"]
    peak = manifest["measured"]["rows"][0]
    # planned for the longest length that is allowed
    assert 0 < peak["measured_bytes"] < 1.05 * peak["planned_bytes"]


def test_memory_that_runs_out_is_explained_and_a_smaller_batch_gets_through(model, tmp_path) -> None:
    manifest = train(
        *(model, tmp_path, "hardware.memory_gib=5", "hardware.enforce_memory=true", "gate=off"),
        *("training.micro_batch=32", "training.grad_accum=1", "training.gradient_checkpointing=false"),
        *("launcher.on_oom=smaller_batch", "launcher.oom_retries=5"),
    )
    first = manifest["attempts"][0]
    assert first["settings"]["training.micro_batch"] == 32
    assert first["failure"]["moment"] in ("forward", "backward", "step")
    assert first["failure"]["reserved_bytes"] <= first["failure"]["limit_bytes"]
    training = manifest["config"]["training"]
    assert training["micro_batch"] < 32 and training["micro_batch"] * training["grad_accum"] == 32
    reserved = manifest["measured"]["rows"][1]["measured_bytes"]
    assert reserved <= first["failure"]["limit_bytes"]


def test_what_an_evaluation_began_to_gather_does_not_stop_saving(model, tmp_path) -> None:
    rows_file = f"data.heldout={model}/rows.json"
    manifest = train(
        *(model, tmp_path, "zero=stage3", "zero.stage3_param_persistence_threshold=1000", rows_file),
        *("training.evaluate=true", "training.evaluate_every=4", "training.micro_batch=2", "data.score=none"),
    )
    assert manifest["results"]["train"]["evaluation"]["after"]["loss"] > 0
    assert list(tmp_path.glob("*/*/merged/*.safetensors"))
