"""`--to sh`: a script for step 1 of DeepSpeed-Chat, whose code fixes much of what llmsys leaves open."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Config, Device, MethodKind, ModelKind, Optimizer, Scheduler
from llmsys_exp.errors import UserError
from llmsys_exp.importers.deepspeed_chat import targets_of
from llmsys_exp.importers.writers.exported import Exported, Telling
from llmsys_exp.plan.case import hf_config

SCRIPT_ZERO = {
    "zero.overlap_comm": True,
    "zero.reduce_bucket_size": 500_000_000,
    "zero.stage3_param_persistence_threshold": 10_000,
    "zero.stage3_max_live_parameters": 30_000_000,
    "zero.stage3_prefetch_bucket_size": 30_000_000,
}
"""What its `get_train_ds_config` writes, whatever is asked for."""
SCOPES = ("layers.", "h.")
SCHEDULERS = {Scheduler.cosine: "cosine", Scheduler.linear: "linear", Scheduler.constant: "constant"}


def write(config: Config, path: Path) -> Exported:
    """Return the script.

    Raises:
        UserError: for what step 1 does not train.
    """
    _check(config)
    told = Telling(config)
    words = _flags(config, told)
    _tell_fixed(told)
    launch = ["deepspeed", *_ranks(config), "main.py", *words]
    text = (
        "#!/bin/bash\n"
        f"# {config.name}: written by llmsys export-config. Run it in "
        "training/step1_supervised_finetuning of DeepSpeed-Chat.\n"
        'OUTPUT=${1:-./output}\nmkdir -p "$OUTPUT"\n\n'
        + " \\\n   ".join(_lines(launch))
        + ' \\\n   --output_dir "$OUTPUT" \\\n   &> "$OUTPUT/training.log"\n'
    )
    told.notes.append(
        "loss: its script pads every row to max_seq_len, and prints losses of micro-batches (--print_loss)"
    )
    return Exported({path: text}, told.unmapped, told.notes, f"bash {path} OUTPUT")


def _check(config: Config) -> None:
    kind, lora = config.method.kind, config.method.lora
    problem = None
    if config.model.kind is not ModelKind.causal_lm:
        problem = ("DeepSpeed-Chat trains language models only", "model.kind")
    elif kind not in (MethodKind.full, MethodKind.lora):
        problem = ("DeepSpeed-Chat's step 1 has full and LoRA training", "method.kind")
    elif kind is MethodKind.lora and (lora.use_dora or lora.use_rslora or lora.adapter or lora.train_base):
        problem = ("DeepSpeed-Chat's LoRA is plain and starts anew", "method.lora")
    elif config.training.dtype.value not in ("fp16", "bf16"):
        problem = ("DeepSpeed-Chat computes in fp16 or bf16", "training.dtype")
    elif Device.nvme in (config.offload.optimizer, config.offload.param):
        problem = ("DeepSpeed-Chat offloads to main memory only", "offload")
    if problem is not None:
        raise UserError(problem[0], where=problem[1], do="Choose another format, or train with llmsys")


def _lines(words: list[str]) -> list[str]:
    """A line a flag, with its values."""
    lines: list[str] = []
    for word in map(shlex.quote, words):
        if word.startswith("--") and any(
            line.startswith("deepspeed") and "main.py" in line for line in lines
        ):
            lines.append(word)
        elif lines:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _ranks(config: Config) -> list[str]:
    nodes = ["--num_nodes", str(config.hardware.nodes)] if config.hardware.nodes > 1 else []
    return ["--num_gpus", str(config.hardware.gpus_per_node), *nodes]


def _flags(config: Config, told: Telling) -> list[str]:
    training, model = config.training, config.model
    pairs: dict[str, Any] = {
        "data_path": _data(config, told),
        "data_split": "1,0,0",
        "model_name_or_path": model.id if model.path is None else str(shipped_path(model.path)),
        "per_device_train_batch_size": training.micro_batch,
        "gradient_accumulation_steps": training.grad_accum,
        "max_seq_len": config.data.max_length,
        "learning_rate": training.learning_rate,
        "weight_decay": training.weight_decay,
        "num_train_epochs": int(training.epochs),
        "lr_scheduler_type": _scheduler(config),
        "num_warmup_steps": training.warmup_steps or 0,
        "seed": config.seed,
        "dtype": training.dtype.value,
        "zero_stage": config.zero.stage,
    }
    switches = ["--deepspeed", "--print_loss"]
    if training.gradient_checkpointing is True:
        switches.append("--gradient_checkpointing")
    if config.offload.optimizer is Device.cpu:
        switches.append("--offload")
    if config.method.kind is MethodKind.lora:
        pairs |= _lora(config, told)
        switches.append("--only_optimize_lora")
    return [*(part for key, value in pairs.items() for part in (f"--{key}", str(value))), *switches]


def _scheduler(config: Config) -> str:
    name = SCHEDULERS[config.training.scheduler]
    return "constant_with_warmup" if name == "constant" and config.training.warmup_steps else name


def _data(config: Config, told: Telling) -> str:
    if config.data.train and "/" in config.data.train and not shipped_path(config.data.train).exists():
        return config.data.train
    told.lose("data.train", "DeepSpeed-Chat reads data sets that its code knows, or data/train.json and "
        "data/eval.json of its folder",
              "Put the rows there as {prompt, chosen, rejected}")  # fmt: skip
    return "local/jsonfile"


def _lora(config: Config, told: Telling) -> dict[str, Any]:
    lora = config.method.lora
    told.lose_unless(
        "method.lora.alpha", 1.0, "its LoRA scales by 1 / r, which is alpha=1", "Set method.lora.alpha=1"
    )
    told.lose_unless("method.lora.dropout", 0.0, "its LoRA has no dropout", "Set method.lora.dropout=0")
    told.lose_unless("method.lora.modules_to_save", [], "with --only_optimize_lora nothing else is trained")
    if config.method.lora.targets != "all-linear":
        told.lose(
            "method.lora.targets", "its filter is one part of a name", "Set method.lora.targets=all-linear"
        )
    return {
        "lora_dim": lora.r,
        "lora_module_name": _scope(config, told),
        "lora_learning_rate": config.training.learning_rate,
    }


def _scope(config: Config, told: Telling) -> str:
    """A part of a name that stands in the names of all linear layers of the blocks, and in no other."""
    shape = hf_config(config)
    found = next((one for one in SCOPES if targets_of(shape, one) == "all-linear"), None)
    if found is None:
        told.lose("method.lora.targets", "its LoRA finds no nn.Linear in a model of this family")
    return found or SCOPES[0]


def _tell_fixed(told: Telling) -> None:
    """What the script's code fixes."""
    config = told.config
    fixed = {"training.adam_beta1": 0.9, "training.adam_beta2": 0.95, "training.gradient_clipping": 1.0}
    for setting, value in fixed.items():
        told.lose_unless(setting, value, f"the script takes {value:g}", f"Set {setting}={value:g}")
    if config.training.optimizer is not Optimizer.deepspeed_adamw:
        told.lose(
            "training.optimizer",
            "the script takes DeepSpeed's Adam",
            "Set training.optimizer=deepspeed_adamw",
        )
    told.lose_unless(
        "data.train_on_prompt",
        True,
        "the script learns the prompt's tokens too",
        "Set data.train_on_prompt=true",
    )
    told.lose_unless("data.packing", False, "the script packs nothing", "Set data.packing=false")
    told.lose_unless("training.max_steps", None, "the script counts epochs", "Set training.max_steps=null")
    told.lose_unless("training.liger", False, "the script has no such kernels", matters=False)
    told.lose_unless(
        "data.heldout_split", 0.0, "its data_split gives held-out rows their own way", matters=False
    )
    if config.training.epochs != int(config.training.epochs):
        told.lose(
            "training.epochs", "the script counts whole epochs", "Set training.epochs to a whole number"
        )
    if config.training.warmup_ratio and config.training.warmup_steps is None:
        told.lose(
            "training.warmup_ratio",
            "the script counts steps",
            "Set training.warmup_steps=STEPS training.warmup_ratio=0",
        )
    if config.zero.stage != 0:
        for setting, expected in SCRIPT_ZERO.items():
            if config.zero.stage == 3 or "stage3" not in setting:
                told.lose_unless(setting, expected, f"the script takes {expected}", matters=False)
