"""(b) transformers' Trainer with its DeepSpeed integration."""

from __future__ import annotations

from pathlib import Path

from benchmarks.train_rivals.common import load_model, load_tokens
from benchmarks.train_rivals.job import Job


def train(job: Job) -> None:
    """Train with the Trainer's defaults but for what the job says."""
    import torch
    from torch.utils.data import SequentialSampler
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

    class InOrder(Trainer):
        """Takes the rows in their order, so that all programs see the same batches."""

        def _get_train_sampler(self, *rest, **more):
            return SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=str(Path(job.work) / "hf_trainer"),
        per_device_train_batch_size=job.micro_batch,
        max_steps=job.max_steps,
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        bf16=job.dtype == "bf16",
        use_cpu=job.device == "cpu",
        deepspeed=job.ds_config,
        logging_steps=job.log_every,
        save_strategy="no",
        report_to=[],
        seed=job.seed,
        dataloader_pin_memory=job.device == "cuda",
    )
    tokenizer = AutoTokenizer.from_pretrained(job.model_folder)
    torch.manual_seed(job.seed)  # adapters as the others have them
    trainer = InOrder(
        model=load_model(job),
        args=arguments,
        train_dataset=load_tokens(job),
        data_collator=DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8),
    )
    trainer.train()
