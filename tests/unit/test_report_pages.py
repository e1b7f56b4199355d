"""Pages of sweeps and runs as files: what they hold, what is inert in them, and what is said where none can be made."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from page_samples import EVIL, end_point, manifest, sample_run, sample_sweep

from llmsys_exp.cli import main
from llmsys_exp.errors import UserError
from llmsys_exp.report.pages import at_end, layout, sweep_charts
from llmsys_exp.report.pages import sweep_page as sweep_page_module
from llmsys_exp.report.pages.figures import axis, lines
from llmsys_exp.report.pages.run_page import run_page
from llmsys_exp.report.pages.run_settings import settings_rows
from llmsys_exp.report.pages.sweep_charts import setting_charts
from llmsys_exp.report.pages.sweep_page import sweep_page
from llmsys_exp.runs.told import read_told
from llmsys_exp.sweeps.folder import SweepPaths
from llmsys_exp.sweeps.results.best import measures_of
from llmsys_exp.sweeps.results.rows import Results, results_of
from llmsys_exp.sweeps.results.warm import WARM_CSV, read_warm_sweep


def page_of(paths: Any, sweep: Any) -> str:
    return sweep_page(paths, sweep, results_of(sweep, sweep.ledger(paths).states()))


def figures(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page)
    return json.loads(text, parse_constant=pytest.fail)  # browsers know no NaN in JSON


def charts_of(settings: list[str], values: list[list[Any]], **more: Any) -> dict[str, Any]:
    rows = [
        {
            "point": n,
            "state": "done",
            "kind": None,
            **dict(zip(settings, one, strict=True)),
            "heldout_loss": 1.0 + n,
        }
        for n, one in enumerate(values)
    ]
    results = Results(tuple(settings), tuple(rows), {})
    return setting_charts(results, measures_of(rows), **more)


def test_page_of_a_sweep_tells_best_skipped_and_failed_points_with_commands(tmp_path: Path):
    overrides = [["zero.stage=2", f"training.micro_batch={n}"] for n in (1, 2, 4, 8)]
    paths, sweep = sample_sweep(tmp_path, overrides, skipped=[4])
    end_point(paths, sweep, 1, manifest(1.5))
    end_point(paths, sweep, 2, manifest(1.2, peak_gib=11))
    end_point(paths, sweep, 3, None, kind="diverged", what="Training diverged in step 3")
    page = page_of(paths, sweep)
    base = "experiment=sample data.max_length=96 zero.stage=2"
    assert f"llmsys train {base} training.micro_batch=2<" in page, "the best one"
    assert f"{base} training.micro_batch=8 training.micro_batch=1 training.grad_accum=2<" in page, (
        "the skipped one, mended"
    )
    assert f"llmsys sweep retry {paths.folder} --only diverged --set KEY=VALUE" in page
    assert "Training diverged in step 3" in page and str(paths.point_log(3)) in page
    found = figures(page)
    assert set(found["charts"]) == {
        "dots-heldout_loss",
        "dots-peak_measured_gib",
        "forecast-peak",
        "forecast-host",
    } | {"forecast-speed"}
    assert found["charts"]["forecast-peak"]["points"][1] == {"n": 2, "at": [10.0, 11.0]}
    assert "held-out loss: 1.2" in found["said"]["2"]


def test_text_from_run_folders_is_inert(tmp_path: Path):
    paths, sweep = sample_sweep(tmp_path, [[f"+x='{EVIL}'"], ["+x=2"]])
    end_point(paths, sweep, 1, None, kind=EVIL, what=EVIL)
    content = manifest(1.0, name=EVIL) | {"notes": [EVIL], "attempts": [{EVIL: EVIL}], "data": {EVIL: EVIL}}
    content["choices"] = [{"key": EVIL, "value": EVIL, "reason": EVIL, "given": False}]
    content["results"]["infer"] = {"engine": EVIL, "score_name": EVIL, "score": 1.0}
    run = sample_run(tmp_path / "r", content)
    run.outputs.write_text(json.dumps({"prompt": EVIL, "answer": EVIL}) + "\n")
    run.metrics.write_text(json.dumps({"step": EVIL, "train/loss": EVIL}) + "\n")
    for page in (page_of(paths, sweep), run_page(read_told(run.folder))):
        assert EVIL not in page and "<img" not in page
        assert len(re.findall("<script", page)) == 2, "the figures, and the script of the page"
        assert "&lt;script&gt;" in page


def test_page_allows_its_own_script_only_and_names_no_other_place(tmp_path: Path):
    page = run_page(read_told(sample_run(tmp_path / "r", manifest(1.0)).folder))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    for tag, part in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{part} 'sha256-{digest}'" in policy.replace("&#39;", "'")
    assert policy.startswith("default-src")
    elsewhere = set(re.findall(r"https?://[^\s\"'<]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not elsewhere
    assert not re.search(r"<[^>]+ (src|href)=\"(?!#)", page)
    assert len(page) < 120_000


def test_charts_are_chosen_by_how_many_settings_vary_and_how():
    assert list(charts_of(["a"], [[1], [2]])) == ["dots-heldout_loss"]
    grid = [[1, "x"], [2, "y"], [1, "y"], [2, "x"]]
    assert list(charts_of(["a", "b"], grid)) == ["heat-heldout_loss", "parallel"]
    assert list(charts_of(["a", "b"], [[n, n / 7] for n in range(4)])) == ["dots-a", "dots-b", "parallel"], (
        "of a search"
    )
    assert list(charts_of(["a", "b", "c"], [[1, "x", 3], [2, "y", 4]])) == ["parallel"]
    assert list(charts_of([], [[], []])) == []
    many_words = [[n, f"word {n}"] for n in range(60)]
    assert list(charts_of(["a", "b"], many_words)) == ["dots-heldout_loss"], "too many words for an axis"


def test_a_range_that_is_sampled_by_its_logarithm_is_drawn_so():
    rates = [[1e-4, 0.01], [3e-4, 0.02], [9e-4, 0.05]]
    charts = charts_of(["lr", "decay"], rates, sampled={"lr": True, "decay": False})
    assert charts["dots-lr"]["x"] == {"title": "lr", "kind": "log"}, "and no value is marked"
    assert [one["kind"] for one in charts["parallel"]["axes"]] == ["log", "linear", "linear"]


def test_axes_are_logarithmic_where_values_double_or_span_much_and_words_have_places():
    assert axis("r", [8, 16, 64, 32], marks=True)[0] == {
        "title": "r",
        "kind": "log",
        "marks": [8, 16, 32, 64],
    }
    assert axis("n", [1, 2, 3])[0]["kind"] == "linear"
    assert [axis("lr", at, log=True)[0]["kind"] for at in ([1e-5, 2e-5], [0, 1])] == ["log", "linear"]
    assert axis("lr", [1e-5, None, 1e-3]) == ({"title": "lr", "kind": "log"}, [1e-5, None, 1e-3])
    assert axis("m", ["lora", None, "full", True]) == (
        {"title": "m", "kind": "words", "words": ["full", "lora", "true"]},
        [1, None, 0, 2],
    )
    long = lines("step", "loss", {"a": [(n, 1.0) for n in range(10_000)], "none": []})
    assert [len(one["points"]) for one in long["series"]] == [1500]
    assert [long["series"][0]["points"][place][0] for place in (0, -1)] == [0, 9999]


def test_a_large_sweep_has_few_rows_laid_out_and_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module, name, value in ((sweep_page_module, "AT_ONCE", 5), (sweep_charts, "MOST_LINES", 20)):
        monkeypatch.setattr(module, name, value)
    paths, sweep = sample_sweep(
        tmp_path, [[f"training.weight_decay={n / 100}", f"seed={n % 7}"] for n in range(25)]
    )
    page = page_of(paths, sweep)
    laid_out, _, waiting = page.partition("<template>")
    assert (laid_out.count("<tr data-n="), waiting.count("<tr data-n=")) == (5, 20)
    parallel = figures(page)["charts"]["parallel"]
    assert len(parallel["lines"]) == 20 and "20 of 25 points" in parallel["note"]


def test_page_of_a_run_tells_figures_reasons_environment_and_how_to_repeat_it(tmp_path: Path):
    run = sample_run(tmp_path / "r", manifest(1.25))
    page = run_page(read_told(run.folder))
    for text in (
        "llmsys reproduce",
        "1.25",
        "fastest of 4 that fit",
        "2.13.0",
        "H200",
        "abababababab…",
        "10.5",
    ):
        assert text in page, text
    charts = figures(page)["charts"]
    assert charts["measured"]["rows"][0]["measured"] == 10.5
    assert charts["measured-phases"]["rows"] == [
        {"name": "model loaded", "planned": 1.5, "measured": 2.0, "said": "allocated, CUDA allocator"}
    ]
    loss = {one["name"]: one["points"] for one in charts["loss"]["series"]}
    assert loss["training"][-1] == [4, 0.75]
    assert loss["held-out"] == [[0, 3.1], [4, 1.0]], "before training, and at the last step"
    assert "was changed after" not in page
    run.manifest.write_text(json.dumps(manifest(1.25) | {"name": "another"}))
    assert "was changed after" in run_page(read_told(run.folder))


def test_killed_run_has_a_page_of_what_there_is(tmp_path: Path):
    run = sample_run(tmp_path / "r", manifest(1.0))
    run.manifest.unlink()
    run.metrics.write_text(run.metrics.read_text() + '{"step": 9, "train/lo')
    run.log.write_text(
        "\x1b[31mbegan\x1b[0m\n 10%\r 20%\nKilled by somebody\n" + "x" * 50_000 + "\nlast line\n"
    )
    page = run_page(read_told(run.folder))
    assert "llmsys train resume=" in page and "llmsys reproduce" not in page
    assert "nothing is written about its end" in page and "last line" in page
    assert [one["points"][-1] for one in figures(page)["charts"]["loss"]["series"]] == [[4, 0.75], [4, 1.0]]
    run.status.write_text(json.dumps({"state": "failed", "kind": "oom_gpu", "text": "The GPU ran out"}))
    assert "The GPU ran out" in run_page(read_told(run.folder))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "stopped" in run_page(read_told(empty))


def test_run_of_a_page_is_named_as_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = sample_run(tmp_path / "outputs" / "one" / "2026-11-30_07-00-00-0badcafe", manifest(1.0)).folder
    named = ["--outputs", str(folder.parents[1])]
    assert main.run(["report", "latest", *named]) == 0
    assert (folder / "report.html").is_file()
    (tmp_path / "old.json").write_bytes((folder / "manifest.json").read_bytes())
    assert main.run(["report", str(tmp_path / "old.json")]) == 2
    assert "made of a run folder" in capsys.readouterr().err and not (tmp_path / "report.html").exists()


def test_settings_say_where_they_come_from():
    rows = {
        row["key"]: row for row in settings_rows(manifest(1.0) | {"overrides": ["method=lora", "seed=7"]})
    }
    assert rows["zero.stage"] == {
        "key": "zero.stage",
        "value": "auto",
        "from": "chosen",
        "why": "fastest of 4 that fit",
    }
    assert rows["seed"]["from"] == "asked"
    assert rows["name"]["from"] == "set"
    assert rows["training.learning_rate"]["from"] == "default"
    assert next(iter(rows)) == "zero.stage", "what was chosen comes first"


def test_answers_are_cut_and_a_sample(tmp_path: Path):
    run = sample_run(tmp_path / "r", manifest(1.0))
    answers = [
        {"index": n, "instruction": "ask", "input": f"number {n}", "output": "y" * 9_000} for n in range(30)
    ]
    run.generations.write_text("".join(json.dumps(one) + "\n" for one in answers))
    page = run_page(read_told(run.folder))
    assert "a sample of 20" in page and "number 19" in page and "number 20" not in page
    assert "and 5,000 more characters" in page


def test_without_its_package_a_page_is_refused_with_the_command_and_no_run_is_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = sample_run(tmp_path / "r", manifest(1.0))
    assert at_end.write_run_page(run) == [] and layout.is_page(run.report)
    run.report.unlink()
    stopped = sample_run(tmp_path / "stopped", manifest(1.0))
    stopped.manifest.unlink()
    assert at_end.write_run_page(stopped) == [] and not stopped.report.exists(), "it may go on"
    monkeypatch.setattr(at_end, "find_spec", lambda name: None)
    assert at_end.write_run_page(run) == [] and not run.report.exists()
    monkeypatch.setattr(layout, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'llmsys-exp\[report\]'"):
        run_page(read_told(run.folder))


def test_a_page_that_cannot_be_made_is_a_note_at_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = sample_run(tmp_path / "r", manifest(1.0))
    run.report.mkdir()
    (note,) = at_end.write_run_page(run)
    assert note.startswith("No report.html: UserError")


@pytest.mark.parametrize("value", ["<b>", 7, [], [1], {"a": {"b": 1}}, 1e999], ids=str)
def test_parts_of_a_record_that_somebody_edited_are_left_out(tmp_path: Path, value: Any):
    content = manifest(1.0)
    content["results"]["infer"] = {
        "tokens_per_s": value,
        "latency_s": value,
        "time_s": {"load": value},
        "prompts": value,
    }
    content["results"]["train"] |= {"seconds": value, "loss": value, "memory_per_rank": value, "speed": value}
    content["forecast"] |= {"components": value, "required_gib": value, "bands": value, "notes": value}
    content["verdict"] |= {"budget_gib": value}
    content["timing_s"] = {"total": value}
    page = run_page(read_told(sample_run(tmp_path / "r", content).folder))
    assert figures(page) and "sample" in page and "<b>" not in page


def test_sweep_of_warm_inference_has_a_page_from_its_table(tmp_path: Path):
    folder = tmp_path / "tiny" / "2026-01-01_00-00-00-sweep"
    folder.mkdir(parents=True)
    lines = [
        "point,model.path,inference.batch_size,state,seconds,tokens_per_s,latency_p99_s,folder,error",
        "1,m,1,complete,37.4,5.1,2.2,/runs/1,",
        "2,m,all,complete,6.5,88.9,,/runs/2,",
        f"3,m,9,not started,,,,,{EVIL}",
        "4,m,8,failed,,,,/runs/4,It broke",
    ]
    (folder / WARM_CSV).write_text("\n".join(lines), encoding="utf-8")
    sweep, results = read_warm_sweep(folder)
    assert (sweep.base, results.settings) == (("model.path=m",), ("inference.batch_size",))
    assert [row["state"] for row in results.rows] == ["done", "done", "skipped", "failed"]
    assert results.rows[1]["out_tokens_per_s"] == 88.9 and results.rows[1]["answer_seconds"] == 6.5
    page = sweep_page(SweepPaths(folder), sweep, results)
    assert "llmsys infer model.path=m inference.batch_size=all<" in page and "It broke" in page
    assert EVIL not in page and "llmsys sweep resume" not in page and "llmsys sweep retry" not in page
    (folder / WARM_CSV).write_text("point,state\nx,complete", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be read"):
        read_warm_sweep(folder)


def test_what_was_done_with_a_run_later_and_that_it_went_on_are_told(tmp_path: Path):
    starts = [
        {"time": "t1", "command": ["llmsys", "train"]},
        {"time": "t2", "command": ["llmsys", "train", "resume=x y"]},
    ]
    later = [{"what": "export", "finished": "t3", "command": ["llmsys", "export", "r"]}]
    page = run_page(read_told(sample_run(tmp_path / "r", manifest(1.0, starts=starts, later=later)).folder))
    assert "t2: llmsys train &#39;resume=x y&#39;" in page and "t1: llmsys" not in page
    assert "export t3: llmsys export r" in page
