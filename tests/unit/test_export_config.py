"""What is written for another tool reads back as the same settings, and what has no counterpart is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.importers import read
from llmsys_exp.importers.experiment import with_overrides
from llmsys_exp.importers.writers import WRITERS, export
from llmsys_exp.launch.ds_config import ds_config

FROM_ELSEWHERE = {
    "name", "paths", "model.id", "model.path", "data.name", "data.score", "data.heldout", "model.entry",
    "training.evaluate_every",
}  # fmt: skip
"""What a file of another tool does not hold, or holds by another name."""


def planned(*overrides: str) -> Config:
    """Compose; every setting that a file holds is given."""
    return compose_config(overrides)


def written(plan: Config, to: str, path: Path) -> Path:
    """Write every file of an export."""
    for file, text in export(plan, to, path).files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted settings."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and f"{prefix}{key}" != "data.columns":
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differences(before: Config, path: Path, *overrides: str) -> dict[str, Any]:
    """Import a file, plan it, and return the settings that differ: (before, after)."""
    after = planned(*with_overrides(read(path), overrides).overrides())
    old, new = flat(to_plain(before)), flat(to_plain(after))
    return {
        key: (old[key], new[key])
        for key in old
        if old[key] != new[key] and key not in FROM_ELSEWHERE and key.partition(".")[0] not in FROM_ELSEWHERE
    }


BASE = (
    "model=local", "model.path=shipped:data/small_llama", "hardware=rtx4090", "hardware.gpus_per_node=2", "data=order_book",
    "data.heldout=null", "training.micro_batch=2", "training.grad_accum=4", "training.gradient_checkpointing=false",
    "zero=stage1", "zero.reduce_bucket_size=1000000", "offload=none", "training.expandable_segments=auto",
    "training.dtype=bf16", "training.optimizer=torch_adamw",
)  # fmt: skip
"""Nothing is left to the planner, so that composing is enough."""
GIVEN = ("hardware=rtx4090", "hardware.gpus_per_node=2")


@pytest.mark.parametrize(
    "overrides",
    [
        (
            "method=lora", "method.lora.r=32", "method.lora.dropout=0.1", "method.lora.adapter_dtype=fp32", "zero.stage=3",
            "training.warmup_steps=7", "training.warmup_ratio=0", "training.gradient_checkpointing=true",
            "training.checkpointing=reentrant", "data.packing=true", "data.template=llama3",
        ),
        (
            "method=qlora", "training.optimizer=paged_adamw_8bit", "method.lora.adapter_dtype=fp32",
            "method.lora.targets=[q_proj,v_proj]", "training.attention=flash_attention_2", "training.dtype=fp16",
            "training.scheduler=linear", "zero.stage=1",
        ),
        (
            "method=full", "zero=stage3", "offload=all_cpu", "training.scheduler=constant", "training.warmup_ratio=0",
            "training.weight_decay=0.1", "training.adam_beta2=0.95", "training.max_steps=12", "training.epochs=1000000",
            "training.gradient_clipping=0.5", "zero.stage3_max_live_parameters=30000000", "checkpoint.every=5",
        ),
    ],
    ids=["lora", "qlora", "full"],
)  # fmt: skip
def test_llama_factory_round_trip(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    plan = planned(*BASE, *overrides)
    path = written(plan, "llamafactory", tmp_path / "job.yaml")
    different = differences(plan, path, *GIVEN)
    # the same rows, named through the dataset_info.json that lies beside the YAML
    assert different.pop("data.train", None)
    assert different.pop("data.dataset_info") == (None, str(tmp_path / "job_data" / "dataset_info.json"))
    different.pop("training.expandable_segments", None)  # an environment variable there
    different.pop("training.global_batch", None)  # micro-batch, accumulation and GPUs say it
    different.pop("method.quantization.prepare_for_kbit_training", None)
    assert different == {}


def test_ds_config_is_the_very_file_of_a_run(tmp_path: Path) -> None:
    plan = planned(*BASE, "method=full", "zero=stage2", "offload=optimizer_cpu")
    path = written(plan, "ds", tmp_path / "ds.json")
    assert json.loads(path.read_text()) == ds_config(plan, world_size=2, device="cuda")
    different = differences(
        plan,
        path,
        "hardware=rtx4090",
        "model=local",
        "model.path=shipped:data/small_llama",
        "method=full",
        "data=order_book",
        "data.heldout=null",
    )
    different.pop("training.global_batch", None)
    different.pop("training.expandable_segments", None)
    assert set(different) <= {"training.gradient_checkpointing"}  # no part of a ds_config


CHAT = (
    "model=local", "model.path=shipped:data/small_llama", "hardware=a100_80gb", "hardware.gpus_per_node=4", "method=lora", "method.lora.r=64",
    "method.lora.alpha=1", "zero=stage3", "zero.overlap_comm=true", "zero.stage3_param_persistence_threshold=10000",
    "zero.stage3_max_live_parameters=30000000", "zero.stage3_prefetch_bucket_size=30000000", "offload=none",
    "zero.reduce_bucket_size=500000000", "training.dtype=bf16", "training.optimizer=deepspeed_adamw",
    "training.adam_beta2=0.95", "training.warmup_ratio=0", "training.warmup_steps=5", "training.micro_batch=4",
    "training.grad_accum=2", "training.gradient_checkpointing=true", "data=llama_factory", "data.train=some/rows",
    "data.train_on_prompt=true",
)  # fmt: skip


def test_deepspeed_chat_round_trip(tmp_path: Path) -> None:
    plan = planned(*CHAT)
    exported = export(plan, "sh", tmp_path / "job.sh")
    assert not exported.lost
    path = written(plan, "sh", tmp_path / "job.sh")
    assert "--lora_module_name layers." in path.read_text()
    different = differences(plan, path, "hardware=a100_80gb")
    different.pop("training.expandable_segments", None)
    assert different == {}


def test_a_script_tells_what_deepspeed_chat_cannot_say(tmp_path: Path) -> None:
    plan = planned(*CHAT, "method.lora.alpha=16", "training.max_steps=9", "training.gradient_clipping=0.3")
    lost = {one.key for one in export(plan, "sh", tmp_path / "job.sh").lost}
    assert lost == {"method.lora.alpha", "training.max_steps", "training.gradient_clipping"}


@pytest.mark.parametrize(("model", "scope"), [("falcon_7b", "h."), ("opt_1_3b", "layers."), ("gpt2", None)])
def test_deepspeed_chats_filter_fits_the_family(tmp_path: Path, model: str, scope: str | None) -> None:
    exported = export(planned(*CHAT[2:], f"model={model}"), "sh", tmp_path / "job.sh")
    if scope is None:
        assert "method.lora.targets" in {one.key for one in exported.lost}
    else:
        assert f"--lora_module_name {scope} " in exported.files[tmp_path / "job.sh"]


@pytest.mark.parametrize(
    ("to", "overrides", "what"),
    [
        ("llamafactory", ("method=freeze", "method.freeze.modules=[mlp]"), "freezes by layers"),
        ("llamafactory", ("method=lora", "method.lora.train_base=true"), "cannot train the base"),
        ("sh", ("method=qlora", "data.packing=false"), "full and LoRA"),
        ("dschat", ("method=lora",), "Known: ds, llamafactory, sh"),
    ],
)
def test_what_another_tool_does_not_do_is_refused(
    tmp_path: Path, to: str, overrides: tuple[str, ...], what: str
) -> None:
    with pytest.raises(UserError, match=what):
        export(planned(*BASE, *overrides), to, tmp_path / "x")


def test_rows_are_described_to_llama_factory(tmp_path: Path) -> None:
    rows = tmp_path / "talk.jsonl"
    rows.write_text('{"chat": []}\n')
    plan = planned(*(one for one in BASE if not one.startswith("data")), "data=alpaca", f"data.train={rows}", "data.format=messages", "+data.columns.messages=chat",
                   "method=lora", "data.heldout_split=0.1")  # fmt: skip
    path = written(plan, "llamafactory", tmp_path / "job.yaml")
    entry = json.loads((tmp_path / "job_data" / "dataset_info.json").read_text())["alpaca"]
    assert entry["file_name"] == str(rows)
    assert entry["columns"] == {"messages": "chat"}
    assert entry["tags"]["role_tag"] == "role"
    keys = yaml.safe_load(path.read_text())
    assert (keys["dataset"], keys["val_size"]) == ("alpaca", 0.1)


def test_every_writer_names_its_ending() -> None:
    assert {ending for _, ending in WRITERS.values()} == {".yaml", ".json", ".sh"}
