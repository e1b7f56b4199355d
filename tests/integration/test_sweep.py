"""A sweep with a real job: a tiny model answers prompts, started and recorded by `llmsys sweep`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_jobs import make_model, rows

from llmsys_exp.cli import main

FILE = """
base:
  model: local
  model.path: model
  hardware: cpu
  name: tiny
  inference.prompts: rows.json
  inference.limit: 2
points:
  - {inference.sampling.max_new_tokens: 2}
"""


@pytest.mark.engine
def test_sweep_file_runs_a_real_job_to_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    make_model(Path("model"))
    Path("rows.json").write_text(json.dumps(rows()), encoding="utf-8")
    Path("sweep.yaml").write_text(FILE, encoding="utf-8")
    assert main.run(["sweep", "run", "sweep.yaml", "--verb", "infer"]) == 0, capsys.readouterr()
    capsys.readouterr()
    main.run(["sweep", "status", "--json"])
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["state"] == "done"
    manifest = json.loads(Path(point["folder"], "manifest.json").read_text(encoding="utf-8"))
    assert manifest["results"]["infer"]["prompts"] == 2
    assert manifest["environment"]["packages"]["torch"]
    assert len(manifest["model"]["files"]["model.safetensors"]["sha256"]) == 64
    assert point["lease"] != []
    assert main.run(["sweep", "resume"]) == 0
    assert len(list(Path("outputs/tiny").glob("*/manifest.json"))) == 1
