"""`llmsys infer` from the command line to its records, with a worker that answers at once.

Called in this process: Python and Hydra are imported once for all of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.cli.main import run
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config, Dtype, MethodKind, Step
from llmsys_exp.runs.files import read_json, write_json
from llmsys_exp.runs.paths import RunPaths

# Takes the place of the interpreter and answers as the worker does, from arguments or from its input.
FAKE_PYTHON = """#!{python}
import json, os, sys
if sys.argv[1] == "-c" or "llmsys_exp.workers.convert" in sys.argv:
    if "metadata" in sys.argv[2]:
        print('{{"sglang": "0.5.17"}}')
    sys.exit(0)
say = lambda **event: print("@llmsys " + json.dumps(event), flush=True)
engine = {{"key": None}}

def answer(folder):
    job = json.load(open(f"{{folder}}/job.json"))
    settings = job["config"]["inference"]
    print("settings", settings["batch_size"], flush=True)
    if settings["sampling"]["temperature"] == 0.5:
        say(event="error", kind="engine", text="The engine ended.", code=4)
        return 4
    fresh, engine["key"] = engine["key"] != job["engine_key"], job["engine_key"]
    with open(f"{{folder}}/generations.jsonl", "a") as journal:
        for index in (1, 0):
            journal.write(json.dumps({{"index": index, "instruction": "say", "output": f"answer {{index}}"}}) + "\\n")
    count = 8 if settings["batch_size"] == "all" else settings["batch_size"]
    json.dump({{
        "engine": settings["engine"], "prompts": 2, "prompt_tokens": 20, "new_tokens": 40, "stopped": 2, "aborted": 0,
        "seconds": 4.0 / count, "tokens_per_s": 10.0 * count, "retractions": 0, "pid": os.getpid(),
        "time_s": {{"load": 2.0 if fresh else 0.0, "warm_up": 0.0, "generate": 4.0 / count}},
        "latency_s": {{"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0}}, "settings": {{"batch_size": settings["batch_size"]}},
    }}, open(f"{{folder}}/results/infer.json", "w"))
    return 0

if sys.argv[-1] == "--stdin":
    for line in sys.stdin:
        say(event="done", folder=line.strip(), code=answer(line.strip()))
else:
    sys.exit(answer(sys.argv[-1]))
"""


class Llmsys:
    """Calls the command line and keeps what it said."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self._capsys = base, capsys
        self.fake = base / "fake-python"
        self.fake.write_text(FAKE_PYTHON.format(python=sys.executable), encoding="utf-8")
        self.fake.chmod(0o755)
        self.prompts = base / "prompts.json"
        self.prompts.write_text(json.dumps([{"instruction": "say"}] * 2), encoding="utf-8")
        self.model = base / "model"
        self.model.mkdir()
        shape = {"model_type": "llama", "vocab_size": 400, "hidden_size": 64, "intermediate_size": 128}
        shape |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32768}
        write_json(self.model / "config.json", shape | {"architectures": ["LlamaForCausalLM"]})
        (self.model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        self.said = self.told = ""

    def infer(self, *arguments: str, with_model: bool = True) -> int:
        model = ["model=local", f"model.path={self.model}", f"inference.prompts={self.prompts}"]
        common = [*(model if with_model else ()), f"launcher.python={self.fake}", "paths.outputs=out"]
        return self.call("infer", *arguments, *common)

    def call(self, *arguments: str) -> int:
        code = run(list(arguments))
        self.said, self.told = self._capsys.readouterr()
        return code

    def runs(self, name: str) -> list[dict[str, Any]]:
        folders = sorted((self.base / "out" / name).glob("*/job.json"))
        return [read_json(one.parent / "manifest.json") or {} for one in folders]

    def results(self, name: str) -> list[dict[str, Any]]:
        return [one["results"]["infer"] for one in self.runs(name) if one]


@pytest.fixture
def llmsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Llmsys:
    monkeypatch.chdir(tmp_path)
    return Llmsys(tmp_path, capsys)


def test_a_run_has_no_training_in_it_and_its_answers_in_file_order(llmsys: Llmsys) -> None:
    assert llmsys.infer("name=one") == 0, llmsys.told
    assert "Peak of each phase" not in llmsys.said
    assert "2 prompts, 20 tokens in, 40 out" in llmsys.said
    [manifest] = llmsys.runs("one")
    assert (manifest["forecast"], manifest["serving"]["engine"]) == (None, "transformers")
    [folder] = (llmsys.base / "out" / "one").iterdir()
    job = read_json(folder / "job.json")
    assert (job["serving"], job["config"]["steps"], len(job["engine_key"])) == (None, ["infer"], 16)
    import pandas as pd

    table = pd.read_parquet(folder / "generations.parquet")
    assert table["output"].tolist() == ["answer 0", "answer 1"]


def test_a_sweep_keeps_one_worker_and_outlives_a_point_that_fails(llmsys: Llmsys) -> None:
    grid = ("inference.batch_size=4,1", "inference.sampling.temperature=0,0.5")
    assert llmsys.infer("-m", "name=grid", *grid) == 4
    done = llmsys.results("grid")
    assert len({one["pid"] for one in done}) == 1
    assert sorted(one["time_s"]["load"] for one in done) == [0.0, 2.0]
    assert "batch_size 1 -> 4: 4x tokens/s" in llmsys.said
    assert llmsys.said.count("The engine ended") == 4  # when it failed and below the table
    [sweep] = (llmsys.base / "out" / "grid").glob("*-sweep")
    assert {"sweep.csv", "sweep.parquet", "changes.txt", "batch_size.png"} <= {
        p.name for p in sweep.iterdir()
    }
    logs = [path.read_text(encoding="utf-8") for path in (llmsys.base / "out" / "grid").glob("*/log.txt")]
    assert len(logs) == 4
    assert all(text.count("settings") == 1 for text in logs)
    assert llmsys.call("runs", "out", "--json") == 0
    states = sorted(one["state"] for one in json.loads(llmsys.said))
    assert states == ["complete"] * 2 + ["failed (engine)"] * 2


def test_the_table_of_a_sweep_is_there_after_each_point(
    llmsys: Llmsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmsys_exp.jobs import infer_sweep

    class Killed(BaseException):
        """As good as kill -9: nothing behind it runs."""

    def end_of_second(*args: Any) -> Any:
        if llmsys.results("killed"):
            raise Killed
        return carry_out(*args)

    carry_out = infer_sweep.carry_out
    monkeypatch.setattr(infer_sweep, "carry_out", end_of_second)
    monkeypatch.setattr("llmsys_exp.cli.infer._end_sweep", lambda *args, **named: None)
    with pytest.raises(Killed):
        llmsys.infer("-m", "name=killed", "inference.batch_size=1,2")
    [sweep] = (llmsys.base / "out" / "killed").glob("*-sweep")
    assert [path.name for path in sweep.iterdir()] == ["sweep.csv"]
    _, first, second = (sweep / "sweep.csv").read_text(encoding="utf-8").splitlines()
    assert "complete" in first
    assert "not reached" in second


def test_settings_apart_and_an_engine_that_needs_another_start(llmsys: Llmsys) -> None:
    apart = ("inference.batch_size=2,4", "training.attention=sdpa,eager")
    assert llmsys.infer("-m", "--one-at-a-time", "name=apart", *apart) == 0, llmsys.told
    done = llmsys.results("apart")
    assert len(done) == 3
    assert len({one["pid"] for one in done}) == 2  # another attention is another engine
    assert llmsys.infer("--one-at-a-time", "--cfg", "job") == 2
    assert "goes neither with --one-at-a-time" in llmsys.told


def test_lengths_of_answers_share_the_start_of_the_longest(llmsys: Llmsys) -> None:
    engine = ("inference.engine=sglang", f"inference.sglang.python={llmsys.fake}")
    assert llmsys.infer("-m", "name=shared", *engine, "inference.sampling.max_new_tokens=600,9000") == 0
    jobs = [read_json(one) for one in (llmsys.base / "out" / "shared").glob("*/job.json")]
    contexts = {one["serving"]["arguments"]["context_length"] for one in jobs}
    assert len({one["engine_key"] for one in jobs}) == len(contexts) == 1
    assert contexts.pop() > 9000
    assert sorted(one["time_s"]["load"] for one in llmsys.results("shared")) == [0.0, 2.0]


def test_a_point_that_cannot_start_is_told_before_any_other(llmsys: Llmsys) -> None:
    assert llmsys.infer("-m", "name=some", "hardware.nodes=1,2") == 2
    assert "point 2 not started" in llmsys.told
    assert "Inference runs on one machine" in llmsys.told
    assert len(llmsys.results("some")) == 1


def test_a_stopped_run_goes_on_and_a_complete_one_says_so(llmsys: Llmsys) -> None:
    assert llmsys.infer("name=stopped", "inference.sampling.temperature=0.5") == 4
    [folder] = (llmsys.base / "out" / "stopped").iterdir()
    job = read_json(folder / "job.json")
    job["config"]["inference"]["sampling"]["temperature"] = 0.0
    write_json(folder / "job.json", job)
    assert llmsys.call("infer", f"resume={folder}", "inference.sampling.top_k=5") == 2
    assert "inference.sampling.top_k (0 -> 5)" in llmsys.told
    assert llmsys.call("infer", f"resume={folder}", "inference.batch_size=4") == 0, llmsys.told
    assert "Going on after 0 answers" in llmsys.said
    assert read_json(folder / "manifest.json")["results"]["infer"]["tokens_per_s"] == 40.0
    assert llmsys.call("infer", f"resume={folder}", "inference.sampling.top_k=5") == 2
    assert llmsys.call("infer", f"resume={folder}") == 0
    assert "This run is complete: 2 answers" in llmsys.said


def trained(llmsys: Llmsys, **files: Any) -> RunPaths:
    """Leave what a finished training run leaves; `merged` and `adapter` are folders."""
    paths = RunPaths(llmsys.base / "out" / "trained" / "one")
    config = Config(name="trained", steps=[Step.train])
    config.model.id, config.model.path = "tiny", str(llmsys.model)
    config.method.kind, config.data.template = MethodKind.lora, "chatml"
    config.data.name, config.data.train = "rows", "rows.json"
    config.inference.batch_size = 16
    config.training.dtype = Dtype.bf16
    chosen = [
        {"key": key, "value": value, "reason": "as it was", "given": False}
        for key, value in (("inference.batch_size", 16), ("training.dtype", "bf16"))
    ]
    resolved = {"model_folder": str(llmsys.model), "prompts_file": str(llmsys.prompts)}
    content = {"config": to_plain(config), "plan": {"choices": chosen}, "resolved": resolved}
    for folder in (paths.results, paths.adapter):
        folder.mkdir(parents=True)
    write_json(paths.job, {"schema_version": 1} | content)
    write_json(paths.result("train"), {"steps": 3})
    write_json(paths.adapter / "adapter_config.json", {"r": 8} | files.get("peft", {}))
    write_json(paths.adapter / "base.json", {"model": "/models/tiny"} | files.get("base", {}))
    return paths


def test_a_run_is_served_with_its_adapter_and_its_own_settings(llmsys: Llmsys) -> None:
    paths = trained(llmsys)
    asked = (f"run={paths.folder}", "name=served", "inference.sampling.top_k=7")
    assert llmsys.infer(*asked, with_model=False) == 0, llmsys.told
    [job] = (llmsys.base / "out" / "served").glob("*/job.json")
    content = read_json(job)
    resolved, config = content["resolved"], content["config"]
    assert (resolved["adapter_folder"], resolved["model_folder"]) == (str(paths.adapter), str(llmsys.model))
    assert (config["data"]["template"], config["inference"]["sampling"]["top_k"]) == ("chatml", 7)
    # chosen anew for this machine: all prompts of the file, and what a CPU computes in
    assert (config["inference"]["batch_size"], config["training"]["dtype"]) == (2, "fp32")
    (paths.merged).mkdir()
    for file in llmsys.model.iterdir():
        (paths.merged / file.name).write_bytes(file.read_bytes())
    sweep = ("-m", f"run={paths.folder}", "name=merged", "inference.sampling.top_k=1,2")
    assert llmsys.infer(*sweep, with_model=False) == 0, llmsys.told
    jobs = [read_json(one)["resolved"] for one in (llmsys.base / "out" / "merged").glob("*/job.json")]
    assert [one["model_folder"] for one in jobs] == [str(paths.merged)] * 2
    assert [one["adapter_folder"] for one in jobs] == [None] * 2


REFUSED = {
    "no folder": (lambda paths: paths.folder.rename(paths.folder.with_name("two")), "no such run folder"),
    "not finished": (lambda paths: paths.result("train").unlink(), "This run is not finished: stopped"),
    "other base": (
        lambda paths: write_json(paths.adapter / "base.json", {"fingerprint": "0" * 64}),
        "trained over another model",
    ),
    "no base": (
        lambda paths: (Path(read_json(paths.job)["resolved"]["model_folder"])).rename(paths.folder / "gone"),
        "The base model of this run is not on this machine",
    ),
    "perceptron": (
        lambda paths: write_json(
            paths.job, read_json(paths.job) | {"config": to_plain(Config()) | {"model": {"kind": "mlp"}}}
        ),
        "This run trained a perceptron",
    ),
}


@pytest.mark.parametrize(("spoil", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused(llmsys: Llmsys, spoil: Any, expected: str) -> None:
    paths = trained(llmsys)
    weights = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    header = json.dumps(weights).encode()
    data = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
    (llmsys.model / "model.safetensors").write_bytes(data)
    spoil(paths)
    assert llmsys.infer(f"run={paths.folder}", "name=served", with_model=False) == 2
    assert expected in llmsys.told
    assert not (llmsys.base / "out" / "served").exists()


def test_words_that_belong_elsewhere_are_refused(llmsys: Llmsys) -> None:
    paths = trained(llmsys, peft={"use_dora": True})
    asked = ("inference.engine=sglang", f"inference.sglang.python={llmsys.fake}")
    assert llmsys.infer(f"run={paths.folder}", *asked, with_model=False) == 2
    assert "SGLang does not serve an adapter with DoRA" in llmsys.told
    assert llmsys.call("infer", f"resume={paths.folder}") == 2
    assert "llmsys train resume=" in llmsys.told
    assert llmsys.infer(f"run={paths.folder}", "inference.limt=3", with_model=False) == 2
    assert "Did you mean inference.limit?" in llmsys.told
    assert llmsys.infer(f"run={paths.folder},{paths.folder}", with_model=False) == 2
    assert "run takes one run folder" in llmsys.told
    assert llmsys.infer("inference.engine=sglang", "name=none", "inference.sglang.python=/nowhere") == 2
    assert "/nowhere is not a Python interpreter" in llmsys.told
