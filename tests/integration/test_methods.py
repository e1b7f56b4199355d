"""Methods on a tiny model in this process: what is trained, what gets a gradient, what is refused."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.schema import (
    Checkpointing,
    Config,
    Dtype,
    FreezeConfig,
    LoraConfig,
    Loss,
    MethodConfig,
    MethodKind,
    Optimizer,
    TrainingConfig,
)
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.plan.method_case import method_case
from llmsys_exp.workers.methods import apply_method
from llmsys_exp.workers.models.kernels import use_kernels
from llmsys_exp.workers.training.checks import GradientCheck
from llmsys_exp.workers.training.optimizers import client_optimizer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

LAYERS = 3


def tiny(*, layers: int = LAYERS, hidden: int = 32, dtype: Any = torch.float32) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    shape = LlamaConfig(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(shape).to(dtype)


def config_of(kind: MethodKind, *, checkpointing: Checkpointing | None = None, **method: Any) -> Config:
    training = TrainingConfig(gradient_checkpointing=checkpointing is not None)
    if checkpointing is not None:
        training.checkpointing = checkpointing
    return Config(method=MethodConfig(kind=kind, **method), training=training)


def batch() -> dict[str, Any]:
    ids = torch.arange(24).reshape(2, 12) % 60
    labels = ids.clone()
    labels[:, :4] = -100
    return {"input_ids": ids, "labels": labels}


def run(model: Any, **more: Any) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of one step, each trainable weight checked to have one."""
    model.train()
    check = GradientCheck(model)
    loss = model(**batch(), **more).loss
    loss.backward()
    check.finish(None)
    return float(loss.detach()), {
        name: one.grad for name, one in model.named_parameters() if one.requires_grad
    }


def trained(model: Any) -> set[str]:
    return {name for name, one in model.named_parameters() if one.requires_grad}


METHODS = {
    "full": config_of(MethodKind.full),
    "freeze": config_of(MethodKind.freeze, freeze=FreezeConfig(last_layers=1)),
    "modules": config_of(MethodKind.freeze, freeze=FreezeConfig(modules=["layers.1.mlp", "lm_head"])),
    "lora": config_of(MethodKind.lora),
    "dora": config_of(MethodKind.lora, lora=LoraConfig(use_dora=True)),
    "saved": config_of(MethodKind.lora, lora=LoraConfig(modules_to_save=["embed_tokens", "lm_head"])),
    "base": config_of(MethodKind.lora, lora=LoraConfig(train_base=True)),
}


# DeepSpeed's own needs its process group: tests/integration/test_workers.py
@pytest.mark.parametrize(
    "how", [Checkpointing.non_reentrant, Checkpointing.reentrant], ids=lambda one: one.value
)
@pytest.mark.parametrize("name", METHODS)
def test_checkpointing_changes_neither_loss_nor_gradients(name: str, how: Checkpointing) -> None:
    plain = METHODS[name]
    recomputed = copy.deepcopy(plain)
    recomputed.training.gradient_checkpointing, recomputed.training.checkpointing = True, how
    wanted_loss, wanted = run(apply_method(tiny(), plain))
    loss, gradients = run(apply_method(tiny(), recomputed))
    assert loss == wanted_loss and set(gradients) == set(wanted)
    for key, one in wanted.items():
        assert torch.allclose(gradients[key], one, atol=1e-7), key


def test_every_method_trains_what_it_says() -> None:
    names = {key: trained(apply_method(tiny(), config)) for key, config in METHODS.items()}
    assert all(".layers.2." in one or one.startswith("lm_head") for one in names["freeze"])
    assert all(".layers.1.mlp." in one or one.startswith("lm_head") for one in names["modules"])
    assert all(".lora_" in one for one in names["lora"]) and len(names["lora"]) == LAYERS * 7 * 2
    assert {one.rpartition(".")[0].rpartition(".")[2] for one in names["dora"] - names["lora"]} == {"default"}
    assert len(names["saved"] - names["lora"]) == 2
    assert len(names["base"]) == len(names["full"]) + len(names["lora"])


def test_rank_stabilised_adapters_scale_by_the_root() -> None:
    model = apply_method(tiny(), config_of(MethodKind.lora, lora=LoraConfig(r=4, alpha=8, use_rslora=True)))
    assert model.base_model.model.model.layers[0].mlp.up_proj.scaling["default"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(Dtype.auto, "bfloat16"), (Dtype.bf16, "bfloat16"), (Dtype.fp32, "float32")],
    ids=["auto", "bf16", "fp32"],
)
def test_adapters_have_the_type_of_the_settings(wanted: Dtype, expected: str) -> None:
    config = config_of(MethodKind.lora, lora=LoraConfig(adapter_dtype=wanted))
    model = apply_method(tiny(dtype=torch.bfloat16), config)
    found = {str(one.dtype) for name, one in model.named_parameters() if ".lora_" in name}
    assert found == {f"torch.{expected}"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of(MethodKind.freeze, freeze=FreezeConfig(modules=["mpl"])), "Did you mean mlp?"),
        (config_of(MethodKind.freeze, freeze=FreezeConfig(last_layers=9)), "the model has 3 layers"),
        (config_of(MethodKind.lora, lora=LoraConfig(targets=["q_prj"])), "Did you mean q_proj?"),
        (config_of(MethodKind.lora, lora=LoraConfig(modules_to_save=["lm_hed"])), "Did you mean lm_head?"),
        (config_of(MethodKind.lora, lora=LoraConfig(adapter="/no/such")), "The adapter cannot be read"),
    ],
    ids=["module", "layers", "target", "saved", "adapter"],
)
def test_names_that_the_model_does_not_have_are_refused(config: Config, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        apply_method(tiny(), config)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that has learnt something: rank 4 on two kinds of modules."""
    settings = LoraConfig(r=4, alpha=4, targets=["q_proj", "down_proj"])
    model = apply_method(tiny(), config_of(MethodKind.lora, lora=settings))
    torch.manual_seed(5)
    for name, one in model.named_parameters():
        if ".lora_B." in name:
            one.data.normal_()
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder, save_embedding_layers=False)
    torch.save(model(**batch()).logits.detach(), folder / "logits.pt")
    return folder


def test_training_goes_on_with_an_adapter_as_it_was_saved(adapter: Path) -> None:
    model = apply_method(tiny(), config_of(MethodKind.lora, lora=LoraConfig(r=16, adapter=str(adapter))))
    assert len(trained(model)) == LAYERS * 2 * 2
    wanted = torch.load(adapter / "logits.pt", weights_only=True)
    assert torch.equal(model(**batch()).logits, wanted)
    run(model)


def test_training_goes_on_with_an_adapter_whose_targets_are_an_expression(
    adapter: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    file = folder / "adapter_config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    stored["target_modules"] = r".*\.(q_proj|down_proj)"
    file.write_text(json.dumps(stored), encoding="utf-8")
    config = config_of(MethodKind.lora, lora=LoraConfig(adapter=str(folder)))
    assert method_case(config.method, {}, dtype="fp32")["lora"]["target_modules"] == ["down_proj", "q_proj"]
    model = apply_method(tiny(), config)
    assert torch.equal(model(**batch()).logits, torch.load(folder / "logits.pt", weights_only=True))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"hidden": 64}, "size mismatch"),
        ({"layers": 2}, "no place in this model"),
        ({"layers": 4}, "not in it"),
    ],
    ids=["wider", "fewer-layers", "more-layers"],
)
def test_an_adapter_of_another_model_is_refused(adapter: Path, shape: Any, reason: str) -> None:
    with pytest.raises(UserError, match=f"of another model.*{reason}"):
        apply_method(tiny(**shape), config_of(MethodKind.lora, lora=LoraConfig(adapter=str(adapter))))


def test_a_weight_without_a_gradient_is_named() -> None:
    model = apply_method(tiny(), METHODS["full"])
    model.model.layers[0].register_forward_hook(lambda _module, _inputs, output: output.detach())
    with pytest.raises(
        JobError, match=r"10 trainable parameters got no gradient in step 1: model\.embed_tokens"
    ):
        run(model)


def test_experts_without_a_token_are_no_failure() -> None:
    lone = torch.nn.ModuleDict({"experts": torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])})
    check = GradientCheck(torch.nn.ModuleDict({"mlp": lone}))
    lone["experts"][0](torch.ones(1, 2)).sum().backward()
    check.finish(1.0)


@pytest.mark.parametrize("items", [None, 5.5], ids=["mean", "items"])
def test_the_chunked_loss_equals_the_stock_one(items: float | None) -> None:
    more = {} if items is None else {"num_items_in_batch": items}
    wanted_loss, wanted = run(tiny(), **more)
    model = tiny()
    use_kernels(model, TrainingConfig(loss=Loss.chunked), device=torch.device("cpu"))
    loss, gradients = run(model, **more)
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    for name, one in wanted.items():
        assert torch.allclose(gradients[name], one, atol=1e-6), name


def test_optimizers_of_absent_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmsys_exp.workers.training.optimizers.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"bitsandbytes is not installed.*training.optimizer=adamw_8bit"):
        client_optimizer([], TrainingConfig(optimizer=Optimizer.adamw_8bit))


@pytest.mark.parametrize(
    ("visible", "asks_nvml"), [("0,1", True), ("GPU-2f72c5cf", False), ("MIG-1a,MIG-2b", False)]
)
def test_gpus_named_by_uuid_are_not_looked_up_by_number(monkeypatch, visible, asks_nvml):
    from deepspeed.accelerator import cuda_accelerator

    from llmsys_exp.workers.ranks import leave_nvml_to_numbers

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(cuda_accelerator, "pynvml", "loaded")
    leave_nvml_to_numbers()
    assert (cuda_accelerator.pynvml == "loaded") == asks_nvml
