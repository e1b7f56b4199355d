"""The workers on real engines: DeepSpeed at every stage, peft, transformers; a tiny model on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked import run_forked
from tiny_jobs import events_of, make_job, make_model, rows

from llmsys_exp.runs.paths import RunPaths

pytestmark = pytest.mark.engine

STAGES = (0, 1, 2, 3)
SHORT: dict[str, Any] = {"training__evaluate": True, "training__max_steps": 2, "heldout": 5}
ALONE = {
    "alone-full-2": {"method__kind": "full", "zero__stage": 2, **SHORT},
    "alone-lora-3": {"zero__stage": 3, **SHORT},
}
FULL_BF16 = {
    "method__kind": "full",
    "training__dtype": "bf16",
    "training__learning_rate": 1e-3,
    "training__weight_decay": 0.5,
}
MOMENTUM = {"method__kind": "full", "training__optimizer": "sgd_momentum", "training__learning_rate": 0.5}
RANDOM = {"method__kind": "full", "model__weights": "random", "training__learning_rate": 3e-3}
DEEPSPEEDS = {"training__gradient_checkpointing": True, "training__checkpointing": "deepspeed"}
CASES = {
    **ALONE,
    **{f"full-{stage}": {"method__kind": "full", "zero__stage": stage} for stage in STAGES},
    **{f"lora-{stage}": {"method__kind": "lora", "zero__stage": stage} for stage in STAGES},
    "freeze-2": {"method__kind": "freeze", "zero__stage": 2, "method__freeze": {"last_layers": 1}},
    "lora-2-checkpointed": {"zero__stage": 2, "training__gradient_checkpointing": True},
    "lora-3-bf16": {"zero__stage": 3, "training__dtype": "bf16"},
    "full-2-unclipped": {"method__kind": "full", "zero__stage": 2, "training__gradient_clipping": 0.0},
    "lora-2-checkpointed-by-deepspeed": {"zero__stage": 2, **DEEPSPEEDS},
    "full-0-bf16": {"zero__stage": 0, **FULL_BF16},
    "full-2-bf16": {"zero__stage": 2, **FULL_BF16},
    "full-0-momentum": {"zero__stage": 0, **MOMENTUM},
    "full-3-momentum": {"zero__stage": 3, **MOMENTUM},
    "full-2-adafactor": {
        "method__kind": "full",
        "zero__stage": 2,
        "training__optimizer": "adafactor",
        "training__learning_rate": 1e-3,
    },
    "full-2-random": {"zero__stage": 2, **RANDOM},
    "full-3-random": {"zero__stage": 3, **RANDOM},
    "full-lora-3-base": {"zero__stage": 3, "method__lora": {"train_base": True}, **SHORT},
    "lora-2-evaluated": {"zero__stage": 2, "training__evaluate": True, "training__max_steps": 12},
}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


@pytest.fixture(scope="session")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shape without weights or tokenizer, with a padding index, which a bare zero.Init stumbles over."""
    folder = tmp_path_factory.mktemp("shape")
    sizes = {"hidden_size": 64, "ffn_dim": 96, "word_embed_proj_dim": 64, "num_attention_heads": 4}
    more = {"vocab_size": 400, "num_hidden_layers": 2, "pad_token_id": 1, "max_position_embeddings": 256}
    text = json.dumps({"model_type": "opt", "dropout": 0.0, **sizes, **more})
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def runs(shape: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunPaths]:
    """Train every case, one after the other in one process."""
    base = tmp_path_factory.mktemp("runs")
    made = {
        name: make_job(base / name, shape if "random" in name else model, **settings)
        for name, settings in CASES.items()
    }
    done = run_forked("train_all", *(one.folder for one in made.values()))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return made


@pytest.fixture(scope="session")
def together(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunPaths]:
    """Train the same jobs on two ranks."""
    base = tmp_path_factory.mktemp("together")
    one_each = {"training__micro_batch": 1}
    made = {name: make_job(base / name, model, world_size=2, **ALONE[name] | one_each) for name in ALONE}
    done = run_forked("train_all", *(one.folder for one in made.values()), ranks=2)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = [event["done"] for event in events_of(done, "progress") if event["name"] == "train"]
    # rank 0 alone speaks
    assert steps == [1, 2, 1, 2]
    return made


@pytest.fixture(scope="session")
def exported(runs: dict[str, RunPaths]) -> RunPaths:
    paths = runs["lora-2-evaluated"]
    done = run_forked("llmsys_exp.workers.export", paths.folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return paths


def result(paths: RunPaths, step: str = "train") -> dict[str, Any]:
    return json.loads(paths.result(step).read_text(encoding="utf-8"))


def losses(paths: RunPaths) -> list[float]:
    return [json.loads(line)["train/loss"] for line in paths.metrics.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_every_stage_and_method_trains_and_saves(runs, name):
    paths, summary = runs[name], result(runs[name])
    assert summary["loss"]["last"] < summary["loss"]["first"]
    assert len(losses(paths)) == summary["steps"]
    assert summary["first_step"]["gradient_norm"] > 0
    adapters = "lora" in name
    assert paths.adapter.is_dir() == adapters and paths.merged.is_dir() != adapters
    saved = paths.adapter / "adapter_model.safetensors" if adapters else paths.merged / "model.safetensors"
    assert saved.stat().st_size > 1000
    assert (summary["trainable_parameters"] == summary["total_parameters"]) == ("full" in name)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_all_stages_learn_the_same_in_fp32(runs, method):
    first, *others = (losses(runs[f"{method}-{stage}"]) for stage in STAGES)
    for other in others:
        assert other == pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize("whose", ["", "-by-deepspeed"])
def test_checkpointing_changes_no_loss(runs, whose):
    assert losses(runs[f"lora-2-checkpointed{whose}"]) == pytest.approx(losses(runs["lora-2"]), rel=1e-5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # DeepSpeed's own stage 0 would start Adam at step 2, see optimizers.undo_dummy_step
        ("full-0-bf16", "full-2-bf16"),
        ("full-0-momentum", "full-3-momentum"),
        # drawn whole, and on rank 0 inside zero.Init
        ("full-2-random", "full-3-random"),
    ],
)
def test_stages_agree_on_types_optimizers_and_random_weights(runs, one, other):
    assert losses(runs[one]) == pytest.approx(losses(runs[other]), rel=1e-4)


def test_a_model_without_a_tokenizer_gets_one_that_fits(runs):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(runs["full-3-random"].tokenizer)
    assert len(tokenizer) <= 400 and tokenizer.chat_template and tokenizer.pad_token != tokenizer.eos_token
    assert tokenizer.decode(tokenizer("2 red lamps")["input_ids"]) == "2 red lamps"


def test_losses_equal_those_of_a_plain_torch_loop(runs, model):
    expected = plain_torch_losses(model, learning_rate=1e-2)
    assert losses(runs["full-2-unclipped"]) == pytest.approx(expected, rel=1e-4)


def plain_torch_losses(model: Path, *, learning_rate: float) -> list[float]:
    """Three steps without DeepSpeed, without padding, and with the loss written out."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from llmsys_exp.workers.data.encode import encode
    from llmsys_exp.workers.data.order import Order
    from llmsys_exp.workers.data.rows import Row

    tokenizer = AutoTokenizer.from_pretrained(model)
    examples, _ = encode(tokenizer, [Row(**row) for row in rows()], max_length=512)
    order = Order(count=len(examples), micro_batch=2, grad_accum=2, world_size=1, seed=1234)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.0)
    found = []
    # warm-up of one step, then half a cosine over the two that are left
    for step, factor in enumerate((1.0, 1.0, 0.5)):
        optimizer.param_groups[0]["lr"] = learning_rate * factor
        picked = [examples[number] for number in order.step(step)]
        total = torch.zeros(())
        for one in picked:
            logits = network(input_ids=torch.tensor([one.ids])).logits[0]
            of_answer = logits[len(one.prompt_ids) - 1 : -1].log_softmax(-1)
            total = total - of_answer.gather(1, torch.tensor(one.answer_ids)[:, None]).sum()
        loss = total / sum(len(one.answer_ids) for one in picked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_memory_on_the_cpu_is_within_one_percent_of_the_formula(runs):
    # later runs share the process with what earlier ones left behind
    check_stage2_memory(result(runs[next(iter(CASES))]), world_size=1)


def check_stage2_memory(summary: dict[str, Any], *, world_size: int) -> None:
    """Full training in fp32: whole weights, and this rank's part of a flat copy and of Adam's two moments."""
    weights = 4 * summary["total_parameters"]
    for rank in summary["memory_per_rank"]:
        phases = {one["phase"]: one["live_tensor_bytes"] for one in rank["phases"]}
        assert phases["model loaded"] == pytest.approx(weights, rel=0.01)
        assert phases["engine started"] == pytest.approx(weights * (1 + 1 / world_size), rel=0.01)
        assert phases["after first step"] == pytest.approx(weights * (1 + 3 / world_size), rel=0.01)
        # the loss, a number of eight bytes, is still there after the first step
        assert phases["after last step"] == pytest.approx(phases["after first step"], abs=64)


def test_evaluation_before_and_after_shows_what_was_learnt(runs):
    before, after = (result(runs["lora-2-evaluated"])["evaluation"][key] for key in ("before", "after"))
    assert after["loss"] < before["loss"]
    assert 0 <= before["score"] <= 1 and before["score_name"] == "field_f1"
    assert before["rows"] == len(rows())


def test_frozen_layers_stay_as_they_were(runs, model):
    from safetensors.torch import load_file

    before, after = (
        load_file(model / "model.safetensors"),
        load_file(runs["freeze-2"].merged / "model.safetensors"),
    )
    assert set(before) == set(after)
    changed = {name for name in before if not before[name].to(after[name].dtype).equal(after[name])}
    assert changed
    assert all(".layers.1." in name or name.startswith("lm_head") for name in changed)


@pytest.mark.parametrize("name", ["full-2", "full-3"])
def test_a_trained_model_folder_loads_like_any_other(runs, name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(runs[name].merged)
    assert str(network.dtype) == "torch.bfloat16"
    assert AutoTokenizer.from_pretrained(runs[name].merged).chat_template


@pytest.mark.parametrize("name", ALONE)
def test_two_ranks_learn_like_one(runs, together, name):
    assert losses(together[name]) == pytest.approx(losses(runs[name]), rel=1e-4)
    two, one = result(together[name]), result(runs[name])
    for moment in ("before", "after"):
        assert two["evaluation"][moment]["loss"] == pytest.approx(one["evaluation"][moment]["loss"], rel=1e-4)
        assert two["evaluation"][moment]["score"] == one["evaluation"][moment]["score"]
    assert len(two["memory_per_rank"]) == 2


def test_two_ranks_share_the_optimizer_state(together):
    check_stage2_memory(result(together[next(iter(ALONE))]), world_size=2)


def test_export_merges_and_proves_it(exported):
    check = result(exported, "export")["check"]
    assert check["changed_weights"] == 14
    assert check["largest_logit_difference"] <= check["tolerance"]
    assert json.loads((exported.merged / "config.json").read_text())["dtype"] == "bfloat16"
    assert (exported.merged / "chat_template.jinja").is_file()


def test_inference_answers_every_prompt_and_keeps_every_tenth(exported):
    done = run_forked("llmsys_exp.workers.infer", exported.folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    every = [json.loads(line) for line in exported.generations.read_text().splitlines()]
    every.sort(key=lambda one: one["index"])
    some = [json.loads(line) for line in exported.outputs.read_text().splitlines()]
    assert [(one["index"], one["input"]) for one in every] == [
        (n, row["input"]) for n, row in enumerate(rows())
    ]
    assert some == every[::10]
    figures = result(exported, "infer")
    assert figures["trained"] and figures["prompts"] == 24
    assert figures["new_tokens"] == sum(one["new_tokens"] for one in every)
    assert [event["done"] for event in events_of(done, "progress")][-1] == 24


@pytest.mark.parametrize(
    ("worker", "change", "expected"),
    [
        ("train", {"train_file": "bad.json"}, "columns of no known layout: output"),
        ("train", {"world_size": 2}, "1 ranks were started"),
        ("infer", {"prompts_file": "empty.json"}, "data set is empty"),
        ("infer", {"prompts_file": "long.json"}, "The model's context holds 256"),
        ("export", {}, "no trained adapter"),
    ],
    ids=["bad-row", "wrong-ranks", "no-prompts", "long-prompt", "nothing-trained"],
)
def test_the_users_mistakes_end_with_one_message_and_code_2(tmp_path, model, worker, change, expected):
    paths = make_job(tmp_path / "run", model, zero__stage=2)
    contents = {"bad": [{"output": "x"}], "empty": [], "long": [{"instruction": "many words " * 200}]}
    for name, value in contents.items():
        (paths.folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    job = json.loads(paths.job.read_text(encoding="utf-8"))
    files = {
        key: str(paths.folder / value) if key.endswith("file") else value for key, value in change.items()
    }
    job["resolved"] |= files
    paths.job.write_text(json.dumps(job), encoding="utf-8")
    done = run_forked(f"llmsys_exp.workers.{worker}", paths.folder)
    errors = events_of(done, "error")
    assert done.returncode == 2, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(errors) == 1 and expected in errors[0]["text"]
    assert not paths.result(worker).exists()
