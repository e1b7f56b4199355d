"""Choosing what is trained, without a model: names, warm-up, and how an adapter folder is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from llmsys_exp.config.schema import FreezeConfig, LoraConfig, MethodConfig, MethodKind
from llmsys_exp.errors import UserError
from llmsys_exp.plan.method_case import method_case
from llmsys_exp.workers.methods import saves_adapters
from llmsys_exp.workers.methods.freeze import _holds
from planner.network.build import build_network

LLAMA = planner.model_config("llama3_2_1b")
STORED = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "modules_to_save": None}


@pytest.mark.parametrize(
    ("module", "expected"),
    [("layers.1", True), ("mlp", True), ("layers.1.mlp", True), ("layers.10", False), ("up", False)],
)
def test_a_module_is_named_by_whole_parts(module: str, expected: bool) -> None:
    assert _holds("model.layers.1.mlp.up_proj.weight", module) == expected


def test_trained_embeddings_are_forecast_as_full_training() -> None:
    method = MethodConfig(kind=MethodKind.freeze, freeze=FreezeConfig(modules=["embed_tokens"]))
    assert method_case(method, LLAMA, dtype="bf16") == {"method": "full"}


def test_adapters_alone_are_the_result_unless_the_base_is_trained() -> None:
    assert saves_adapters(MethodConfig(kind=MethodKind.qlora))
    assert not saves_adapters(MethodConfig(kind=MethodKind.lora, lora=LoraConfig(train_base=True)))
    assert not saves_adapters(MethodConfig(kind=MethodKind.full))


def going_on_with(folder: Path) -> dict[str, Any]:
    method = MethodConfig(kind=MethodKind.lora, lora=LoraConfig(r=64, adapter=str(folder)))
    return method_case(method, LLAMA, dtype="bf16")["lora"]


def test_an_adapter_folder_gives_rank_and_targets(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(STORED), encoding="utf-8")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    expected = {"r": 4, "target_modules": ["q_proj"], "adapter_dtype": "bf16", "train_base": False}
    assert going_on_with(tmp_path) == expected


def write_weights(folder: Path, modules: list[str]) -> None:
    from safetensors.numpy import save_file

    one = np.zeros((4, 4), dtype=np.float32)
    names = [f"base_model.model.model.layers.{layer}.{name}" for layer in range(2) for name in modules]
    weights = {f"{name}.lora_{part}.weight": one for name in names for part in "AB"}
    save_file(weights or {"x": one}, folder / "adapter_model.safetensors")


@pytest.mark.parametrize("text", [r".*layers\.\d+\.(self_attn\.[qv]_proj|mlp\.down_proj)", "all-linear"])
def test_targets_that_are_an_expression_are_read_from_the_weights(tmp_path: Path, text: str) -> None:
    stored = json.dumps(STORED | {"target_modules": text})
    (tmp_path / "adapter_config.json").write_text(stored, encoding="utf-8")
    write_weights(tmp_path, ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"])
    lora = going_on_with(tmp_path)
    assert lora["target_modules"] == ["down_proj", "q_proj", "v_proj"]
    # the planner takes them: 16 layers of rank 4 over the three of Llama-3.2-1B
    case = planner.parse_training_case({"hf_config": LLAMA, "method": "lora", "lora": lora, "gpu": "h200"})
    trained = sum(one.numel for one in build_network(case).parameters() if one.trainable)
    assert trained == 16 * 4 * ((2048 + 2048) + (2048 + 512) + (8192 + 2048))


def test_an_expression_over_weights_without_adapters_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps(STORED | {"target_modules": ".*"}), encoding="utf-8"
    )
    write_weights(tmp_path, [])
    with pytest.raises(UserError, match=r"cannot be told.*has an expression for them"):
        going_on_with(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        (json.dumps(STORED | {"peft_type": "IA3"}), "is of type IA3, not LORA"),
        (json.dumps(STORED), "adapter_model.safetensors is missing"),
    ],
    ids=["absent", "broken", "other-kind", "no-weights"],
)
def test_a_folder_that_is_no_adapter_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "adapter_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        going_on_with(tmp_path)
