"""Finding the data: files, folders, the cache of the hub, entries of a dataset_info.json."""

from __future__ import annotations

import json

import pytest

from llmsys_exp.config.schema import DataConfig, DataFormat
from llmsys_exp.errors import UserError
from llmsys_exp.inputs.data_files import PROMPT_KINDS, data_problems, find_data, find_file
from llmsys_exp.inputs.dataset_info import settle_data
from llmsys_exp.workers.data.parts import read_items

QA = [("user", "q"), ("assistant", "a")]
ENTRIES = {
    "alpaca_en": {"file_name": "a.json"},
    "renamed": {"file_name": "b.json", "columns": {"prompt": "ask", "response": "say"}},
    "talks": {
        "file_name": "c.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "talk", "system": "sys"},
        "tags": {"role_tag": "who", "content_tag": "text", "user_tag": "me", "assistant_tag": "it"},
    },
    "openai": {"file_name": "d.json", "formatting": "openai", "columns": {"messages": "messages"}},
    "pairs": {"file_name": "e.json", "ranking": True, "columns": {"prompt": "question", "chosen": "good"}},
    "texts": {"file_name": "f.json", "columns": {"prompt": "body"}},
}
FILES = {
    "a.json": [{"instruction": "q", "input": "", "output": "a"}],
    "b.json": [{"ask": "q", "say": "a"}],
    "c.jsonl": [{"talk": [{"who": "me", "text": "q"}, {"who": "it", "text": "a"}], "sys": None}],
    "d.json": [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}],
    "e.json": [{"question": "q", "good": "a", "rejected": "b"}],
    "f.json": [{"body": "q a"}],
}


@pytest.fixture
def info(tmp_path):
    for name, rows in FILES.items():
        text = "\n".join(map(json.dumps, rows)) if name.endswith("l") else json.dumps(rows)
        (tmp_path / name).write_text(text)
    (tmp_path / "dataset_info.json").write_text(json.dumps(ENTRIES))
    return tmp_path / "dataset_info.json"


def settled(info, name: str, **more) -> DataConfig:
    return settle_data(DataConfig(name=name, train=None, dataset_info=str(info), **more))


@pytest.mark.parametrize("name", ENTRIES)
def test_every_kind_of_entry_is_read_as_it_says(info, name):
    data = settled(info, name)
    items, kind = read_items(find_data(data.train, "data.train"), data)
    if name == "texts":
        assert kind is DataFormat.text and items[0].text == "q a"
    else:
        assert [(turn.role, turn.content) for turn in items[0].turns] == QA
    assert (kind is DataFormat.preference) == (name == "pairs")


def test_an_entry_of_the_hub_gives_id_subset_and_split(info):
    entry = {"hf_hub_url": "org/set", "ms_hub_url": "x/y", "subset": "small", "split": "validation"}
    info.write_text(json.dumps({"hub": entry}))
    data = settled(info, "hub")
    assert (data.train, data.subset, data.split) == ("org/set", "small", "validation")


def test_columns_of_the_settings_go_before_those_of_the_entry(info):
    assert settled(info, "renamed", columns={"output": "other"}).columns["output"] == "other"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (None, ["'mine' is not a known data set", "Did you mean mini?"]),
        ({}, ["names no data"]),
        ([], ["must be an object"]),
        ({"file": "x"}, ["'file' is not a key", "Did you mean file_name?"]),
        ({"file_name": "x", "formatting": "sharegtp"}, ["Did you mean sharegpt?"]),
        ({"file_name": "x", "columns": {"promt": "a"}}, ["Did you mean prompt?"]),
        ({"file_name": "x", "tags": {"roletag": "a"}}, ["Did you mean role_tag?"]),
        ({"file_name": "x", "columns": {"images": "a"}}, ["'images' is not supported"]),
        ({"file_name": "x", "num_samples": 9}, ["num_samples is not supported", "data.limit"]),
        ({"script_url": "x"}, ["script_url is not supported"]),
    ],
)
def test_entries_that_cannot_be_followed_are_refused(info, entry, expected):
    info.write_text(json.dumps({"mini": {}} if entry is None else {"mine": entry}))
    with pytest.raises(UserError) as caught:
        settled(info, "mine")
    assert all(part in str(caught.value) for part in [*expected, "dataset_info.json"]), str(caught.value)


def test_a_file_of_entries_that_is_none_is_refused(info):
    info.write_text("{\n oops")
    with pytest.raises(UserError, match=r"Not valid JSON.*dataset_info.json:2"):
        settled(info, "mine")
    info.write_text("[]")
    with pytest.raises(UserError, match="must hold one object"):
        settled(info, "mine")
    with pytest.raises(UserError, match="cannot be read"):
        settled(info.with_name("none.json"), "mine")


def test_two_sources_of_rows_are_refused(info):
    with pytest.raises(UserError, match="data=llama_factory"):
        settle_data(DataConfig(name="alpaca_en", train="a.json", dataset_info=str(info)))
    problems = data_problems(DataConfig(name="x", heldout="h.json", heldout_split=0.1, template="chatlm"))
    assert "both say what is held out" in str(problems[0]) and "Did you mean chatml" in str(problems[1])
    assert not data_problems(DataConfig(name="x", heldout_split=0.1, template="chatml"))


def test_templates_in_files_get_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settle_data(DataConfig(name="x", template="t.jinja")).template == str(tmp_path / "t.jinja")
    assert settle_data(DataConfig(name="x", template="chatml")).template == "chatml"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache of the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_hub_id_is_found_as_downloaded_files_or_as_what_datasets_keeps(hub):
    with pytest.raises(UserError, match="hf download --repo-type dataset org/set"):
        find_data("org/set", "data.train")
    (hub / "datasets" / "org___set").mkdir(parents=True)
    assert find_data("org/set", "data.train") is None
    folder = hub / "hub" / "datasets--org--set"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    assert find_data("org/set", "data.train") == str(folder / "snapshots" / "abc")


def test_a_path_goes_before_a_hub_id_and_folders_must_hold_rows(hub):
    (hub / "org" / "set").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no data set"):
        find_data("org/set", "data.train")
    (hub / "org" / "set" / "train.parquet").write_bytes(b"")
    assert find_data("org/set", "data.train") == str(hub / "org" / "set")
    with pytest.raises(UserError, match=r"folder stands where a file.*train\.parquet"):
        find_file("org/set", "inference.prompts")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "has no value"),
        ("rows.jsn", "Did you mean"),
        ("rowz.json", "Did you mean"),
        ("notes.txt", "'.txt' are not read"),
    ],
)
def test_files_that_cannot_be_read_are_refused_before_anything_starts(hub, text, expected):
    for name in ("rows.json", "notes.txt"):
        (hub / name).write_text("[]")
    with pytest.raises(UserError, match=expected):
        find_data(text, "data.train")


def test_datasets_reads_its_own_cache_by_id_without_a_network(hub, monkeypatch):
    """A data set that was loaded once by its id is read again from what `datasets` keeps."""
    import datasets

    from llmsys_exp.workers.data.records import hub_files, read_records

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", hub / "datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    (hub / "set").mkdir()
    (hub / "set" / "train.jsonl").write_text(json.dumps({"instruction": "q", "output": "a"}))
    made = datasets.load_dataset(str(hub / "set"), cache_dir=str(hub / "made"))
    arrow = next((hub / "made").rglob("*.arrow"))
    kept = hub / "datasets" / "org___set" / "default" / "0.0.0" / "abc"
    kept.mkdir(parents=True)
    for file in arrow.parent.iterdir():
        (kept / file.name.replace("json-train", "set-train")).write_bytes(file.read_bytes())
    text = (kept / "dataset_info.json").read_text().replace('"json"', '"set"')
    (kept / "dataset_info.json").write_text(text)
    assert len(made["train"]) == 1
    assert [row for _, row in read_records("org/set")] == [{"instruction": "q", "output": "a"}]
    assert [file.parent for file in hub_files("org/set", subset=None, split="train")] == [kept]


def test_families_that_let_packed_examples_see_one_another_are_refused_before_anything_starts():
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.plan.case import planner_case

    overrides = ["model.id=facebook/opt-1.3b", "model.entry=opt_1_3b", "model.package=null"]
    planner_case(compose_config(overrides), dtype="fp32")
    with pytest.raises(UserError, match="type opt do not keep packed examples apart"):
        planner_case(compose_config([*overrides, "data.packing=true"]), dtype="fp32")


def test_random_weights_need_no_conversion(tmp_path):
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.inputs.find import conversion, converted_folder, find_model

    real = [f"paths.cache={tmp_path}"]
    drawn = [*real, "model.weights=random"]
    folder = converted_folder(compose_config(real))
    assert conversion(compose_config(real), "python")[-1] == find_model(compose_config(real)) == str(folder)
    assert (conversion(compose_config(drawn), "python"), find_model(compose_config(drawn))) == (None, None)
    # the planner's table has no shape of it
    assert conversion(compose_config([*drawn, "model.entry=null"]), "python")[-1] == str(folder)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    # its tokenizer is there already
    assert (conversion(compose_config(drawn), "python"), find_model(compose_config(drawn))) == (
        None,
        str(folder),
    )


def test_prompts_may_be_a_text_file_but_rows_to_train_on_may_not(hub):
    (hub / "asked.txt").write_text("one\ntwo\n")
    named = str(hub / "asked.txt")
    assert find_file(named, "inference.prompts", kinds=PROMPT_KINDS) == named
    with pytest.raises(UserError, match=r"kinds: json, jsonl, csv, parquet\."):
        find_file(named, "data.train")
    with pytest.raises(UserError, match=r"parquet, txt"):
        find_file(None, "inference.prompts", kinds=PROMPT_KINDS)
