"""Runs beside each other: what differs is found, what does not is left out, and what cannot be read is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_samples import end_point, manifest, sample_run, sample_sweep

from llmsys_exp.cli import main
from llmsys_exp.compare.comparison import compare_runs
from llmsys_exp.compare.curves import curve_picture, read_curves, sparkline
from llmsys_exp.compare.subjects import find_subjects
from llmsys_exp.runs.manifest import sealed
from llmsys_exp.runs.paths import RunPaths

OLD = Path(__file__).parent / "data/manifests"


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sample_run(tmp_path / "outputs/one/2026-01-01_00-00-00-aaaaaaaa", manifest(1.0))
    other = manifest(2.0, peak_gib=11.5)
    other["config"]["training"]["learning_rate"] = 0.5
    other["config"]["paths"]["cache"] = "elsewhere"
    other["choices"][0] |= {"value": 3, "reason": "nothing else fits"}
    other["config"]["zero"]["stage"] = 3
    other["environment"]["packages"] |= {"torch": "2.14.0"}
    other["environment"]["python"] = "3.12.1"
    other["machine"]["cpus"] = 4
    other["model"]["files"]["model.safetensors"]["sha256"] = "cd" * 32
    other["data"] = {"files": {"train": {"sha256": "ef" * 32}}, "rows": {"train": 7}, "template_sha256": "x"}
    sample_run(tmp_path / "outputs/two/2026-01-02_00-00-00-bbbbbbbb", sealed(other), steps=6)
    return tmp_path / "outputs"


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main.run(["compare", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_differs_is_found_with_where_it_comes_from_and_what_it_may_change(capsys):
    told = compared(capsys, "latest~1", "two/2026-01-02_00-00-00-bbbbbbbb")
    assert [one["letter"] for one in told["runs"]] == ["A", "B"]
    settings = {row["key"]: row for row in told["settings"]}
    assert set(settings) == {"training.learning_rate", "zero.stage", "paths.cache"}, "and nothing else"
    assert settings["zero.stage"]["values"][1] == "3" and settings["zero.stage"]["origins"] == ["chosen"] * 2
    assert settings["zero.stage"]["reasons"] == ["fastest of 4 that fit", "nothing else fits"]
    assert settings["training.learning_rate"]["effect"] == "numbers"
    assert settings["paths.cache"]["effect"] == "nothing"
    evidence = {(row["kind"], row["key"]): row for row in told["evidence"]}
    assert evidence["packages", "torch"]["values"] == ["2.13.0", "2.14.0"]
    assert evidence["model", "model.safetensors"]["values"] == ["ab" * 32, "cd" * 32]
    assert {("python", "python"), ("hardware", "cpus")} <= set(evidence)
    assert not [key for key in evidence if key[0] == "data"], "what one of them does not tell does not differ"
    figures = {row["key"]: row for row in told["figures"]}
    assert figures["heldout_loss"] | {"name": ""} == {
        "key": "heldout_loss",
        "name": "",
        "values": [1.0, 2.0],
        "differences": [0.0, 1.0],
        "best": 0,
    }
    assert figures["peak_measured_gib"]["values"] == [10.5, 11.5] and figures["steps"]["best"] is None
    assert [len(one["losses"]) for one in told["curves"]] == [4, 6]


def test_text_shows_the_same(capsys):
    assert main.run(["compare", "latest~1", "latest", "-o", "curves.svg"]) == 0
    out = capsys.readouterr().out
    for said in (
        "zero.stage",
        "3 (chosen)",
        "zero.stage in B: nothing else fits",
        "packages: torch",
        "+1 (+100 %)",
    ):
        assert said in out
    assert "█▄" in out or "█▃" in out
    assert Path("curves.svg").read_text(encoding="utf-8").count("</svg>") == 1
    labels = compare_runs(find_subjects(["latest~1", "latest"], Path("outputs")), answers=0).labels
    assert labels["B"] == "B  learning_rate=0.5"
    assert main.run(["compare", "latest~1", "latest", "-o", "curves.svg"]) == 2, "it exists"


def test_run_that_was_killed_tells_what_it_recorded_at_its_start(outputs, capsys):
    killed = RunPaths(outputs / "one/2026-01-01_00-00-00-aaaaaaaa")
    killed.manifest.rename(killed.start)
    told = compared(capsys, str(killed.folder), "latest")
    assert [one["state"] for one in told["runs"]] == ["stopped", "complete"]
    assert {row["key"] for row in told["settings"]} >= {"training.learning_rate"}
    assert [len(one["losses"]) for one in told["curves"]] == [4, 6]
    killed.start.unlink()
    killed.job.write_text("{}", encoding="utf-8")
    told = compared(capsys, str(killed.folder), "latest")
    assert told["settings"] == [], "what nobody recorded does not differ"


def test_manifest_that_is_cut_edited_or_of_a_later_llmsys_is_told(outputs, capsys):
    paths = RunPaths(outputs / "one/2026-01-01_00-00-00-aaaaaaaa")
    text = paths.manifest.read_text(encoding="utf-8")
    for content, said in (
        (text[:500], "cut short"),
        (text.replace('"loss": 1.0', '"loss": 0.1'), "changed by hand"),
        (text.replace('"schema_version": 2', '"schema_version": 9'), "version 9"),
    ):
        paths.manifest.write_text(content, encoding="utf-8")
        [note] = compared(capsys, str(paths.folder), "latest")["notes"]
        assert note.startswith("A: ") and said in note


def test_manifests_of_version_1_and_those_that_lie_alone_are_compared(capsys):
    told = compared(capsys, str(OLD / "v1_train.json"), "latest")
    assert told["runs"][0]["folder"] is None and told["runs"][0]["state"] == "a manifest alone"
    assert told["figures"] and told["settings"]
    assert all(row["values"][1] is not None for row in told["evidence"] if row["kind"] == "packages")


def test_points_of_a_sweep_are_its_runs_even_where_it_was_moved(outputs, capsys):
    paths, sweep = sample_sweep(outputs, [["seed=1"], ["seed=2"], ["seed=3"]])
    for number, loss in ((1, 1.5), (3, 1.25)):
        end_point(paths, sweep, number, manifest(loss))
    moved = outputs.rename(outputs.with_name("moved"))
    told = compared(capsys, f"sample/{paths.folder.name}", "--outputs", str(moved))
    assert [one["run"] for one in told["runs"]] == ["sample/run-1", "sample/run-3"]


def test_answers_are_compared_by_prompt_wherever_it_stands(outputs, capsys):
    rows = [("a", "1"), ("b", "2"), ("b", "3"), ("c", "4")]
    other = [("c", "4"), ("a", "1"), ("b", "2"), ("b", "\x1b[2Jnew"), ("d", "5")]
    for folder, answers in zip(sorted(outputs.glob("*/*")), (rows, other), strict=True):
        lines = [
            json.dumps({"index": index, "instruction": prompt, "input": "", "output": text})
            for index, (prompt, text) in enumerate(answers)
        ]
        RunPaths(folder).generations.write_text("\n".join([*lines, '{"ind']), encoding="utf-8")
    answers = compared(capsys, "latest~1", "latest")["answers"]
    assert answers["pairs"] == [{"letter": "B", "against": "A", "shared": 4, "equal": 3, "only": [0, 1]}]
    [one] = answers["differing"]
    assert (one["index"], one["prompt"], one["answers"]) == (2, "b", {"A": "3", "B": "\x1b[2Jnew"})
    assert main.run(["compare", "latest~1", "latest"]) == 0
    out = capsys.readouterr().out
    assert "3 of 4 prompts answered alike; 1 only in B" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "takes two runs or more"),
        (["latest"], "takes two runs or more"),
        (["latest", "two/2026-01-02_00-00-00-bbbbbbbb"], "named twice"),
        (["latest", "outputs"], "not a run folder"),
        (["latest", "elsewhere/2026-01-01_00-00-00-aaaaaaaa"], "A run of this name lies in"),
        (["latest", "latest~1", "-o", "x.html"], "-o does not write .html"),
        (["latest", "latest~1", "--answers", "x"], "no number of answers"),
        (["latest", "latest~1", "--out"], "not an argument"),
    ],
    ids=["none", "one", "twice", "no run", "moved", "suffix", "count", "flag"],
)
def test_bad_input_is_refused_in_one_message(arguments, said, capsys):
    assert main.run(["compare", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_runs_without_a_step_in_common_are_refused(outputs, capsys):
    answered = manifest(1.0)
    answered["config"]["steps"], answered["results"] = ["infer"], {"infer": {"prompts": 3}}
    sample_run(outputs / "asked/2026-01-03_00-00-00-cccccccc", answered)
    assert main.run(["compare", "latest", "latest~1"]) == 2
    assert "nothing that could be compared: infer, and train" in capsys.readouterr().err


def test_curves_share_their_axes_and_leave_out_what_is_no_number(outputs):
    assert sparkline([(1, 2.0), (3, float("nan")), (5, 0.0)], [1, 2, 3, 4, 5], (0.0, 2.0)) == "████▁"
    assert sparkline([(1, 1.0)], [1], (1.0, 1.0)) == "▁"
    for folder in outputs.glob("*/*"):
        with RunPaths(folder).metrics.open("a", encoding="utf-8") as stream:
            stream.write('{"step": 9, "train/loss": NaN}\n{"step": 10, "train/lo')
    curves, notes = read_curves(find_subjects(["latest~1", "latest"], outputs))
    assert [note.partition(":")[0] for note in notes] == ["A", "B"] and all("1 lines" in one for one in notes)
    assert curve_picture(curves, {"A": "a", "B": "b"}, ".png").startswith(b"\x89PNG")


def test_data_and_model_files_are_compared_by_content_where_both_tell(outputs, capsys):
    here = {"sha256": "1" * 64, "bytes": 5}
    for folder, digest, more in zip(
        sorted(outputs.glob("*/*")), "23", ("config.json", "x.json"), strict=True
    ):
        paths = RunPaths(folder)
        content = json.loads(paths.manifest.read_text(encoding="utf-8"))
        train = {"sha256": digest * 64, "bytes": 5, "path": "rows.json"}
        files = {"train": train} | ({"heldout": here} if digest == "3" else {})
        content["data"] = {"files": files, "rows": {"train": int(digest)}, "template_sha256": digest * 64}
        content["model"] = {"source": "m", "files": {"model.safetensors": here, more: here}}
        paths.manifest.write_text(json.dumps(sealed(content)), encoding="utf-8")
    told = compared(capsys, "latest~1", "latest")
    evidence = {row["key"]: row["values"] for row in told["evidence"] if row["kind"] in ("data", "model")}
    assert evidence == {
        "train": ["2" * 64, "3" * 64],
        "heldout": [None, "1" * 64],
        "template_sha256": ["2" * 64, "3" * 64],
        "rows of train": [2, 3],
    }, "one of the models is told by its weights alone"


def test_part_of_a_record_that_has_another_form_is_told_and_stops_nothing(outputs, capsys):
    paths = RunPaths(outputs / "one/2026-01-01_00-00-00-aaaaaaaa")
    content = json.loads(paths.manifest.read_text(encoding="utf-8"))
    content["machine"] = {"cpus": 2, "host_memory_bytes": "much"}
    other = RunPaths(outputs / "two/2026-01-02_00-00-00-bbbbbbbb")
    changed = json.loads(other.manifest.read_text(encoding="utf-8")) | {"machine": {"host_memory_bytes": 3}}
    for each, record in ((paths, content), (other, changed)):
        each.manifest.write_text(json.dumps(sealed(record)), encoding="utf-8")
    told = compared(capsys, "latest~1", "latest")
    assert any("do not go together" in note for note in told["notes"]) and told["evidence"]
