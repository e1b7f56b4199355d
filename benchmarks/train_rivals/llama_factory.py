"""(c) LLaMA-Factory's own training command, on tokens it reads from disk (its `tokenized_path`)."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.train_rivals.job import Job


def prepare(job: Job) -> None:
    """Its checks refuse newer transformers, datasets and peft than it was released with; its own switch ends them."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"


def train(job: Job) -> None:
    """Run what `llamafactory-cli train` runs."""
    from llamafactory.train.tuner import run_exp

    method = (
        {"finetuning_type": "full"}
        if job.method == "full"
        else {
            "finetuning_type": "lora",
            "lora_target": "all",
            "lora_rank": job.lora_rank,
            "lora_alpha": job.lora_alpha,
            "lora_dropout": 0.0,
        }
    )
    run_exp(
        {
            "stage": "sft",
            "do_train": True,
            "model_name_or_path": str(job.model_folder),
            "flash_attn": "sdpa",
            "disable_gradient_checkpointing": True,
            "dataset": "tokens",
            "template": "empty",
            "tokenized_path": str(job.tokens_folder),
            "cutoff_len": job.max_length,
            "disable_shuffling": True,
            "output_dir": str(Path(job.work) / "llama_factory"),
            "per_device_train_batch_size": job.micro_batch,
            "gradient_accumulation_steps": 1,
            "max_steps": job.max_steps,
            "learning_rate": job.learning_rate,
            "lr_scheduler_type": "constant",
            "bf16": job.dtype == "bf16",
            "use_cpu": job.device == "cpu",
            "deepspeed": job.ds_config,
            "logging_steps": job.log_every,
            "save_strategy": "no",
            "report_to": "none",
            "seed": job.seed,
            **method,
        }
    )
