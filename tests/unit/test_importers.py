"""Configurations of other tools become settings of ours, and nothing that stands in them goes missing."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmsys_exp.errors import UserError
from llmsys_exp.importers import Imported, experiment, read, text
from llmsys_exp.importers.deepspeed_chat import targets_of
from llmsys_exp.importers.experiment import with_overrides
from llmsys_exp.importers.models import row_like
from llmsys_exp.importers.registry import FORMATS
from llmsys_exp.report.console import Console
from planner.tables import model_config

LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 32
lora_target: all
dataset: notes, orders
template: qwen
cutoff_len: 1024
max_samples: 500
output_dir: saves/here
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1e-4
num_train_epochs: 2.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
use_unsloth: true
val_size: 0.05
eval_strategy: steps
eval_steps: 50
wramup_steps: 3
"""
AXOLOTL = """
base_model: meta-llama/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 2048
sample_packing: true
datasets:
  - path: some/orders
    type: alpaca
val_set_size: 0.1
micro_batch_size: 2
gradient_accumulation_steps: 8
num_epochs: 3
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
flash_attention: true
special_tokens:
  pad_token: "<|end|>"
evals_per_epoch: 4
sample_pakcing_bin: 2
"""
DS_CONFIG: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "max_live_parameters": 2e8,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "zero_quantized_weights": True,
        "round_robin_gradients": True,
        "reduce_buckt_size": 5,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 200}},
    "steps_per_print": 5,
    "tensor_paralel": {"autotp_size": 2},
}
SCRIPT = """#!/bin/bash
# A comment with deepspeed main.py --zero_stage 1
OUT=$1
STAGE=${2:-2}
if [ "$OUT" == "" ]; then
    OUT=./results
fi
LORA="--lora_dim 64 --lora_module_name layers."
mkdir -p $OUT
deepspeed --num_gpus 4 main.py \\
   --data_path some/rows \\
   --model_name_or_path meta-llama/Llama-2-7b-hf \\
   --per_device_train_batch_size 2 \\
   --gradient_accumulation_steps 8 \\
   --learning_rate 1e-3 --num_train_epochs 3 \\
   --dtype bf16 --zero_stage $STAGE --offload \\
   $LORA --only_optimize_lora \\
   --gradient_checkpointing --output_dir $OUT \\
   &> $OUT/training.log
"""


def imported(tmp_path: Path, text: str, name: str, **given: Any) -> Imported:
    """Import a text that stands in a file of that name."""
    (tmp_path / name).write_text(text)
    return read(tmp_path / name, **given)


def lost(result: Imported) -> set[str]:
    """Keys that could not be mapped."""
    return {one.key for one in result.lost}


def test_llama_factory_with_its_defaults_written_out(tmp_path: Path) -> None:
    result = imported(tmp_path, LLAMA_FACTORY, "train.yaml")
    settings = result.settings
    assert result.format == "llamafactory"
    assert result.groups == {
        "model": "local",
        "method": "lora",
        "data": "llama_factory",
        "zero": "stage0",
        "offload": "none",
    }
    assert settings["model.entry"] == "qwen2_5_1_5b"
    assert (settings["method.lora.r"], settings["method.lora.alpha"]) == (32, 64)
    assert settings["method.lora.targets"] == "all-linear"
    assert settings["training.learning_rate"] == 1e-4  # YAML 1.1 reads it as a text
    assert (settings["training.micro_batch"], settings["training.grad_accum"]) == (2, 4)
    assert (settings["training.gradient_clipping"], settings["seed"]) == (1.0, 42)
    assert (settings["training.gradient_checkpointing"], settings["training.checkpointing"]) == (
        True,
        "reentrant",
    )
    assert (settings["data.max_length"], settings["data.heldout_split"]) == (1024, 0.05)
    assert settings["training.evaluate_every"] == 50
    assert lost(result) == {"dataset", "use_unsloth", "wramup_steps"}
    hint = next(one for one in result.unmapped if one.key == "wramup_steps")
    assert "warmup_steps" in hint.do
    assert {one.key for one in result.unmapped if not one.matters} == {"output_dir"}
    assert any("twice the rank, 64" in note for note in result.notes)


def test_overrides_win_and_answer_what_was_asked_for(tmp_path: Path) -> None:
    text = LLAMA_FACTORY.replace("Qwen/Qwen2.5-1.5B-Instruct", "some/model")
    result = imported(tmp_path, text, "train.yaml")
    assert {"model_name_or_path", "dataset"} <= lost(result)
    merged = with_overrides(result, ["model=opt_1_3b", "data.train=x.json", "hardware=h100", "zero=stage2"])
    assert not {"model_name_or_path", "dataset"} & lost(merged)
    assert (merged.groups["model"], merged.groups["zero"]) == ("opt_1_3b", "stage2")
    assert "model.id" not in merged.settings
    assert merged.settings["data.train"] == "x.json"


def test_every_key_is_taken_or_told(tmp_path: Path) -> None:
    result = imported(tmp_path, LLAMA_FACTORY + "".join(f"\nodd_{n}: {n}" for n in range(1, 4)), "train.yaml")
    assert {f"odd_{n}" for n in range(1, 4)} <= lost(result)


def test_a_ds_config_agrees_with_the_trainers_arguments_as_transformers_has_it(tmp_path: Path) -> None:
    file, text = tmp_path / "ds.json", LLAMA_FACTORY + "deepspeed: ds.json\n"
    file.write_text('{"zero_optimization": {"stage": 2}}')
    result = imported(tmp_path, text, "a.yaml")
    assert result.settings["training.gradient_clipping"] == 0
    assert any("clips nothing" in note for note in result.notes)
    for other, key in (('"gradient_clipping": 0.5', "gradient_clipping"),
                       ('"optimizer": {"type": "AdamW", "params": {"lr": 1}}', "optimizer.params.lr")):  # fmt: skip
        file.write_text('{"zero_optimization": {"stage": 2}, ' + other + "}")
        with pytest.raises(UserError, match=f"{key} is .*, and the trainer's arguments say"):
            imported(tmp_path, text, "a.yaml")


def test_of_two_keys_that_say_the_same_both_are_read(tmp_path: Path) -> None:
    twice = "packing: true\nneat_packing: true\nuse_liger_kernel: true\nenable_liger_kernel: true\n"
    result = imported(tmp_path, LLAMA_FACTORY + twice, "a.yaml")
    assert result.settings["data.packing"] and result.settings["training.liger"]
    assert not {one.key for one in result.unmapped} & set(re.findall(r"\w+(?=:)", twice))


def test_llama_factory_reads_its_ds_config_and_dataset_info(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        json.dumps({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {
            "stage": 3, "reduce_bucket_size": "auto"}})
    )  # fmt: skip
    (tmp_path / "data").mkdir()
    entry = {"file_name": "o.json", "formatting": "sharegpt", "columns": {"messages": "talk"}}
    entries = {"orders": entry, "held": {**entry, "file_name": "h.json"}, "other": {"file_name": "h.json"}}
    (tmp_path / "data" / "h.json").write_text("[]")
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(entries))
    text = LLAMA_FACTORY.replace("notes, orders", "orders") + "\ndeepspeed: ds.json\n"
    result = imported(tmp_path, text, "train.yaml")
    assert result.groups["zero"] == "stage3"
    assert result.settings["zero.reduce_bucket_size"] == 1536 * 1536
    assert result.settings["zero.overlap_comm"] is True
    assert result.settings["training.dtype"] == "bf16"
    assert result.settings["data.dataset_info"] == str(tmp_path / "data" / "dataset_info.json")
    assert result.settings["data.name"] == "orders"
    held = imported(tmp_path, text.replace("val_size: 0.05", "eval_dataset: held"), "train.yaml")
    assert held.settings["data.heldout"] == str(tmp_path / "data" / "h.json")
    other = imported(tmp_path, text.replace("val_size: 0.05", "eval_dataset: other"), "train.yaml")
    assert "eval_dataset" in lost(other)  # laid out otherwise
    assert lost(result) == {"use_unsloth", "wramup_steps"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("stage: dpo", "trains by DPO"),
        ("finetuning_type: oft", "not supported"),
        ("do_train: false", "trains nothing"),
        ("learning_rate: fast", "should be a number"),
        ("packing: perhaps", "should be true or false"),
        ("gradient_accumulation_steps: 1.5", "should be a whole number"),
    ],
)
def test_llama_factory_refuses_what_is_something_else(tmp_path: Path, change: str, what: str) -> None:
    key = change.partition(":")[0]
    kept = "\n".join(line for line in LLAMA_FACTORY.splitlines() if not line.startswith(f"{key}:"))
    with pytest.raises(UserError, match=what):
        imported(tmp_path, f"{kept}\n{change}\n", "train.yaml")


def test_axolotl(tmp_path: Path) -> None:
    result = imported(tmp_path, AXOLOTL, "train.yml")
    settings = result.settings
    assert result.format == "axolotl"
    assert (result.groups["model"], result.groups["method"]) == ("llama3_2_1b", "qlora")
    assert (settings["method.quantization.bits"], settings["method.lora.alpha"]) == (4, 32)
    assert (settings["data.train"], settings["data.format"]) == ("some/orders", "alpaca")
    assert (settings["data.packing"], settings["data.heldout_split"]) == (True, 0.1)
    assert (settings["training.optimizer"], settings["training.dtype"]) == ("adamw_8bit", "auto")
    assert settings["training.attention"] == "flash_attention_2"
    assert settings["training.warmup_ratio"] == 0.03
    assert lost(result) == {"sample_pakcing_bin"}
    aside = next(one for one in result.unmapped if one.key == "evals_per_epoch")
    assert (aside.matters, aside.do) == (False, "Set training.evaluate_every=STEPS")


@pytest.mark.parametrize("line", ["rl: dpo", "adapter: llama-adapter", "reward_model: true"])
def test_axolotl_refuses_what_is_something_else(tmp_path: Path, line: str) -> None:
    text = AXOLOTL.replace("adapter: qlora\n", "") + line if line.startswith("adapter") else AXOLOTL + line
    with pytest.raises(UserError):
        imported(tmp_path, text, "train.yml")


def test_ds_config_resolves_auto_and_tells_the_ranks(tmp_path: Path) -> None:
    result = imported(tmp_path, json.dumps(DS_CONFIG), "ds.json", model=model_config("qwen2_5_1_5b"))
    settings = result.settings
    assert (result.format, result.groups["zero"]) == ("ds_config", "stage3")
    assert settings["zero.reduce_bucket_size"] == 1536**2
    assert settings["zero.stage3_param_persistence_threshold"] == 10 * 1536
    assert settings["zero.stage3_max_live_parameters"] == 200_000_000
    assert settings["hardware.gpus_per_node"] == 8
    assert settings["training.global_batch"] == 64
    assert (settings["offload.optimizer"], settings["offload.pin_memory"]) == ("cpu", True)
    assert (settings["training.optimizer"], settings["training.adam_beta2"]) == ("deepspeed_adamw", 0.95)
    assert (settings["training.scheduler"], settings["training.max_steps"]) == ("linear", 200)
    assert lost(result) == {
        "zero_optimization.zero_quantized_weights",
        "zero_optimization.reduce_buckt_size",
        "tensor_paralel",
        "scheduler.params.warmup_type",
    }
    assert "Did you mean tensor_parallel?" in {one.do for one in result.lost}
    assert {one.key for one in result.unmapped if not one.matters} == {
        "zero_optimization.round_robin_gradients",
        "steps_per_print",
    }


def test_ds_config_without_a_model_says_what_auto_stands_for(tmp_path: Path) -> None:
    result = imported(tmp_path, json.dumps(DS_CONFIG), "ds.json")
    assert "zero.reduce_bucket_size" not in result.settings
    assert any(
        "reduce_bucket_size=auto: hidden_size squared; the model is not known" in one for one in result.notes
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"train_batch_size": 60}, "no multiple of 4 x 2"),
        ({"zero_optimization": {"stage": 4}}, "must be 0, 1, 2 or 3"),
        ({"zero_optimization": 3}, "must be a mapping"),
        ({"fp16": {"enabled": True}}, "both enabled"),
        ({"bf16": True}, "must be a mapping"),
        ({"optimizer": {"type": "Adam", "params": [1]}}, "must be a mapping"),
        ({"optimizer": {"type": "Adam", "params": {"lr": "fast"}}}, "must be a number"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": True}}, "must be a mapping"),
    ],
)
def test_ds_config_refuses_contradictions(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        imported(tmp_path, json.dumps({**DS_CONFIG, **change}), "ds.json")


def test_deepspeed_chat_script_is_read_with_its_defaults(tmp_path: Path) -> None:
    result = imported(tmp_path, SCRIPT, "run.sh")
    settings = result.settings
    assert result.format == "deepspeed_chat"
    assert (result.groups["model"], result.groups["zero"]) == ("llama2_7b", "stage2")
    assert (settings["method.lora.r"], settings["method.lora.alpha"]) == (64, 1)
    assert settings["method.lora.targets"] == "all-linear"
    assert settings["training.learning_rate"] == 5e-4  # of the adapters; --learning_rate is nobody's
    assert settings["hardware.gpus_per_node"] == 4
    assert (settings["offload.optimizer"], settings["offload.param"]) == ("cpu", "none")
    assert (settings["training.adam_beta2"], settings["training.dtype"]) == (0.95, "bf16")
    assert settings["data.train_on_prompt"] is True
    assert any(note.startswith("GPUs: 4, from the command; 64 sequences") for note in result.notes)
    assert any("0.001 applies to nothing" in note for note in result.notes)
    assert read(tmp_path / "run.sh", arguments=("./o", "3")).groups["zero"] == "stage3"
    assert read(tmp_path / "run.sh", arguments=("./o", "3")).settings["offload.param"] == "cpu"


def test_deepspeed_chat_without_only_lora_trains_the_rest_too(tmp_path: Path) -> None:
    result = imported(tmp_path, SCRIPT.replace("--only_optimize_lora", ""), "run.sh")
    assert "only_optimize_lora" in lost(result)
    assert result.settings["method.lora.modules_to_save"] == ["embed_tokens", "lm_head"]


def test_deepspeed_chats_filter_may_fit_nothing(tmp_path: Path) -> None:
    text = SCRIPT.replace(" --lora_module_name layers.", "")  # its default fits OPT only
    with pytest.raises(UserError, match=r"decoder.layers. fits no module"):
        imported(tmp_path, text, "run.sh")
    result = imported(tmp_path, text.replace("--only_optimize_lora", ""), "run.sh")
    assert result.groups["method"] == "full"
    assert "lora_module_name" in lost(result)


@pytest.mark.parametrize(
    ("family", "scope", "targets"),
    [
        ("opt_1_3b", "decoder.layers.", "all-linear"),
        ("llama2_7b", "layers.", "all-linear"),
        ("llama2_7b", "decoder.layers.", []),
        ("llama2_7b", "q_proj", ["q_proj"]),
        ("gpt2", "h.", []),
    ],
)
def test_deepspeed_chats_filter(family: str, scope: str, targets: Any) -> None:
    assert targets_of(model_config(family), scope) == targets


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            SCRIPT.replace("deepspeed --num_gpus 4", "for S in 1 2; do\ndeepspeed") + "done\n",
            "stands in a loop",
        ),
        (SCRIPT.replace("$STAGE --off", "$(cat stage) --off"), "What follows --zero_stage is not known"),
        (SCRIPT.replace("$STAGE --off", "$ELSEWHERE --off"), "What follows --zero_stage is not known"),
        (SCRIPT.replace("$STAGE --off", '2 "${MORE[@]}" --off'), "What follows --zero_stage is not known"),
        (SCRIPT.replace("deepspeed --num", "if [ -f x ]; then\ndeepspeed --num") + "fi\n", "would decide"),
        (SCRIPT + SCRIPT.replace("1e-3", "2e-3"), "2 training commands"),
        ("#!/bin/bash\necho deepspeed main.py --zero_stage 3\n", "No training command"),
        (
            SCRIPT.replace("deepspeed --num", "S=ab\n" + "S=$S$S\n" * 60 + "deepspeed --num").replace(
                "$STAGE", "$S"
            ),
            "is not known",
        ),
        (SCRIPT.replace("--model_name_or_path", "--actor_model_name_or_path"), "trains by PPO"),
        (SCRIPT.replace("--offload", "--num_padding_at_beginning 1"), "trains a reward model"),
    ],
)
def test_scripts_that_cannot_be_read_without_running_are_refused(
    tmp_path: Path, text: str, what: str
) -> None:
    with pytest.raises(UserError, match=what):
        imported(tmp_path, text, "run.sh")


def test_a_script_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"#!/bin/bash\nX=$(touch {mark})\n`touch {mark}`\ntouch {mark}\n{SCRIPT}"
    imported(tmp_path, text, "run.sh")
    assert not mark.exists()


def test_a_script_with_accelerate_takes_its_ranks_and_stage(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(LLAMA_FACTORY)
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nnum_machines: 2\n"
        "deepspeed_config:\n  zero_stage: 3\n  offload_param_device: cpu\n  gradient_clipping: 0.3\n"
    )
    text = "nohup accelerate launch --config_file acc.yaml src/train.py train.yaml &\n"
    result = imported(tmp_path, text, "go.sh")
    settings = result.settings
    assert (result.groups["zero"], settings["offload.param"], settings["offload.optimizer"]) == (
        "stage3",
        "cpu",
        "none",
    )
    assert (settings["hardware.gpus_per_node"], settings["hardware.nodes"]) == (4, 2)
    assert "deepspeed_config.gradient_clipping" in lost(result)
    (tmp_path / "acc.yaml").write_text("distributed_type: FSDP\nnum_processes: 2\n")
    assert "distributed_type" in lost(read(tmp_path / "go.sh"))
    (tmp_path / "acc.yaml").unlink()
    assert "--config_file" in lost(read(tmp_path / "go.sh"))


def test_training_arguments(tmp_path: Path) -> None:
    given = {
        "output_dir": "x", "per_device_train_batch_size": 4, "max_steps": 50, "learning_rate": 2e-5, "bf16": True,
        "lr_scheduler_type": "SchedulerType.CONSTANT_WITH_WARMUP", "warmup_steps": 0.1, "optim": "adamw_torch",
        "save_strategy": "no", "eval_strategy": "no", "label_smoothing_factor": 0.1, "neftune_noise_alpha": None,
        "report_to": ["tensorboard", "comet_ml"], "hub_token": "hf_secret", "gradient_checkpointing": True,
    }  # fmt: skip
    result = imported(tmp_path, json.dumps(given), "args.json")
    settings = result.settings
    assert (result.format, result.groups["method"]) == ("training_arguments", "full")
    assert (settings["training.max_steps"], settings["training.scheduler"]) == (50, "constant")
    assert settings["training.warmup_ratio"] == 0.1
    assert settings["tracking.mirrors"] == ["tensorboard"]
    assert lost(result) == {"label_smoothing_factor"}
    assert "hf_secret" not in json.dumps(result.to_dict())


def test_output_folder_of_a_trainer(tmp_path: Path) -> None:
    state = {
        "train_batch_size": 4, "max_steps": 30, "num_train_epochs": 3, "logging_steps": 10,
        "log_history": [{"step": 10, "loss": 2.0, "learning_rate": 1e-4}, {"step": 20, "loss": 1.5, "learning_rate": 5e-5}],
    }  # fmt: skip
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen2.5-1.5B", "r": 4, "lora_alpha": 8,
               "target_modules": ["v_proj", "q_proj"], "lora_dropout": 0.1}  # fmt: skip
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x04not to be opened")
    result = read(tmp_path)
    settings = result.settings
    assert (result.format, result.groups["model"], result.groups["method"]) == (
        "trainer_folder",
        "qwen2_5_1_5b",
        "lora",
    )
    assert settings["method.lora.targets"] == ["q_proj", "v_proj"]
    assert (settings["training.max_steps"], settings["training.learning_rate"]) == (30, 1e-4)
    assert lost(result) == {"training_args.bin"}
    assert result.logs == (tmp_path / "trainer_state.json",)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.yaml", "a: &x [1, 2]\nb: *x\n", "aliases"),
        ("a.yaml", "a: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("a.yaml", "base_model: a\nbase_model: b\n", "stands there twice"),
        ("a.yaml", "a: [1\n", "Broken YAML"),
        ("a.json", '{"stage": 1,', "Broken JSON"),
        ("a.json", '{"x": 1, "x": 2}', "stands there twice"),
        ("a.yaml", "- 1\n", "not recognised"),
        ("a.yaml", "one: 1\n", "Looked for .*finetuning_type.*base_model.*zero_optimization|not recognised"),
        ("a.yaml", "a: " + "[" * 40 + "]" * 40 + "\n", "too deep"),
        ("a.yaml", "a: " + "x" * (1 << 20), "too large"),
        ("a.yaml", "a\0b", "not text"),
    ],
)
def test_bad_files_are_refused_in_one_message(tmp_path: Path, name: str, text: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        imported(tmp_path, text, name)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("base_model: other/model\n", "finetuning_type of llamafactory and base_model of axolotl"),
        ("model_revision: '${oc.env:HF_TOKEN}'\n", "Write the value itself"),
    ],
    ids=["two tools", "interpolation"],
)
def test_what_would_be_guessed_or_looked_up_is_refused(tmp_path: Path, change: str, what: str) -> None:
    with pytest.raises(UserError, match=re.escape(what)):
        imported(tmp_path, LLAMA_FACTORY + change, "a.yaml")


def test_a_misspelt_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean model_name_or_path by model_name_or_pth"):
        imported(tmp_path, LLAMA_FACTORY.replace("name_or_path", "name_or_pth"), "a.yaml")


def test_secrets_and_codes_of_terminals_are_not_shown(tmp_path: Path) -> None:
    """Neither on the screen nor in the experiment, which has to stay YAML."""
    key = "hf_" + "k1" * 20
    odd = f'"evil\\e[31m\\nseed: 7": 1\nsome_kee: {key}\n'
    result, screen = imported(tmp_path, LLAMA_FACTORY + odd, "a.yaml"), io.StringIO()
    text._show_lost(Console(screen), result)
    comment = experiment._comment(result)
    for shown in (screen.getvalue(), comment):
        assert "evil seed: 7" in shown and "\x1b" not in shown and key not in shown
    assert yaml.safe_load("# " + comment.replace("\n", "\n# ")) is None


def test_what_might_never_end_is_not_read() -> None:
    with pytest.raises(UserError, match="no regular file"):
        read("/dev/zero")


def test_format_can_be_named_and_must_fit(tmp_path: Path) -> None:
    assert imported(tmp_path, '{"base_model": "gpt2"}', "x.json", format="axolotl").format == "axolotl"
    with pytest.raises(UserError, match="Did you mean axolotl"):
        read(tmp_path / "x.json", "axolot")
    with pytest.raises(UserError, match="does not go with"):
        read(tmp_path / "x.json", "trainer_folder")
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "y.json")
    assert set(FORMATS) >= {
        "llamafactory",
        "axolotl",
        "ds_config",
        "training_arguments",
        "script",
        "trainer_folder",
    }


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("unsloth/Llama-3.2-1B-Instruct", "llama3_2_1b"),
        ("google/gemma-2-9b-it", "gemma2_9b"),
        ("someone/Qwen2.5-Math-7B", None),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2_5_7b_instruct_1m"),
    ],
)
def test_a_tuned_model_has_the_shape_of_its_base(name: str, row: str | None) -> None:
    assert row_like(name) == row
