"""Arguments of transformers' Trainer, which LLaMA-Factory, axolotl and most scripts share.

Names and defaults are those of transformers 5.23 `training_args.py`, and older names beside them.
"""

from __future__ import annotations

from llmsys_exp.importers.sheet import Sheet

OPTIMIZERS = {
    "adamw_torch": "torch_adamw",
    "adamw_hf": "torch_adamw",
    "adamw_torch_fused": "torch_adamw_fused",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "paged_adamw": "paged_adamw",
    "paged_adamw_32bit": "paged_adamw",
    "lion_32bit": "lion",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
SCHEDULERS = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine_with_restarts": "cosine",
    "polynomial": "linear",
}
STANDS_IN = {
    "cosine_with_restarts": "with one cycle it is a cosine",
    "polynomial": "with a power of 1 it is a line, which ends at 1e-7",
}
MIRRORS = ("tensorboard", "wandb", "mlflow")
MANY_EPOCHS = 1_000_000


def put_trainer_arguments(sheet: Sheet, *, default_scheduler: str = "linear") -> None:
    """Map batch, rate, length of the run, precision, saving and evaluation."""
    put_batch(sheet, "per_device_train_batch_size", "gradient_accumulation_steps", default_micro=8)
    put_length(sheet)
    put_rate(sheet, default_scheduler=default_scheduler)
    put_dtype(sheet)
    put_optimizer(sheet)
    put_tracking(sheet)
    sheet.put("seed", sheet.count("seed", 42))
    if sheet.flag("full_determinism"):
        sheet.put("training.deterministic", True)
    by_length = sheet.word("train_sampling_strategy") == "group_by_length"
    if sheet.flag("group_by_length") or by_length:
        sheet.put("data.group_by_length", True)
    if sheet.take("resume_from_checkpoint", False) not in (False, "false"):
        sheet.tell(
            "resume_from_checkpoint", "checkpoints of other tools cannot be gone on with", "Start anew"
        )
    if sheet.any_flag("use_cpu", "no_cuda"):
        sheet.choose("hardware", "cpu")


def put_batch(sheet: Sheet, micro_key: str, accumulation_key: str, *, default_micro: int) -> None:
    """Map the micro-batch and the accumulation; the ranks are for whoever starts the run to say."""
    micro = sheet.whole(micro_key, default_micro)
    accumulation = sheet.whole(accumulation_key, 1)
    sheet.put("training.micro_batch", micro)
    sheet.put("training.grad_accum", accumulation)
    sheet.note(
        f"batch: {micro} a GPU x {accumulation} accumulated x GPUs; {micro * accumulation} sequences a "
        "step on one GPU."
        " The number of GPUs is not in the file: hardware.gpus_per_node=N"
    )


def put_length(sheet: Sheet, epochs_key: str = "num_train_epochs", *, default_epochs: float = 3.0) -> None:
    """Map epochs and steps: with steps, transformers does not look at epochs."""
    epochs, steps = sheet.number(epochs_key, default_epochs), sheet.count("max_steps", -1)
    if steps is not None and steps > 0:
        sheet.put("training.max_steps", steps)
        sheet.put("training.epochs", MANY_EPOCHS)
        if sheet.has(epochs_key):
            sheet.note(
                f"length: max_steps={steps} holds, and {epochs_key} is not looked at, as in transformers"
            )
        return
    sheet.put("training.epochs", epochs)


def put_rate(sheet: Sheet, *, default_scheduler: str, key: str = "lr_scheduler_type") -> None:
    """Map learning rate, schedule, warm-up, decay and clipping."""
    sheet.put("training.learning_rate", sheet.number("learning_rate", 5e-5))
    decay = sheet.number("weight_decay", 0.0)
    sheet.put("training.weight_decay", decay)
    if decay:
        sheet.note("weight_decay: transformers leaves biases and norms out; llmsys decays them as well")
    for theirs, setting in (
        ("adam_beta1", "adam_beta1"),
        ("adam_beta2", "adam_beta2"),
        ("adam_epsilon", "adam_eps"),
    ):
        value = sheet.number(theirs)
        if value is not None:
            sheet.put(f"training.{setting}", value)
    clipping = sheet.number("max_grad_norm", 1.0)
    sheet.put("training.gradient_clipping", clipping)
    put_schedule(sheet, sheet.word(key, default_scheduler) or default_scheduler, key=key)


def put_schedule(sheet: Sheet, name: str, *, key: str = "lr_scheduler_type") -> None:
    """Map the schedule and the warm-up that goes before it."""
    kind = name.rpartition(".")[2].lower()  # `SchedulerType.LINEAR`, as some dumps have it
    known = SCHEDULERS.get(kind)
    if known is None:
        sheet.tell(key, "there is no such schedule; cosine stands in", "Set training.scheduler", value=name)
    elif kind in STANDS_IN:
        sheet.note(f"{key}={kind}: {STANDS_IN[kind]}; {known} stands in")
    sheet.put("training.scheduler", known or "cosine")
    _put_warmup(sheet, none=kind == "constant")


def _put_warmup(sheet: Sheet, *, none: bool) -> None:
    ratio, steps = sheet.number("warmup_ratio", 0.0) or 0.0, sheet.number("warmup_steps", 0.0) or 0.0
    if 0 < steps < 1:  # transformers 5 takes a share under this name
        ratio, steps = steps, 0.0
    if none and (ratio or steps):
        sheet.note("warm-up: the schedule `constant` has none in transformers, whatever the file says")
        ratio = steps = 0.0
    sheet.put("training.warmup_ratio", 0.0 if steps else ratio)
    if steps:
        sheet.put("training.warmup_steps", int(steps))
        if ratio:
            sheet.note(
                f"warm-up: warmup_steps={int(steps)} holds over warmup_ratio={ratio:g}, as in transformers"
            )
    if ratio or steps:
        sheet.note("warm-up: transformers takes its first step at a rate of 0, llmsys one step further on")


def put_dtype(sheet: Sheet) -> None:
    """Map bf16 and fp16."""
    bf16, fp16 = sheet.flag("bf16"), sheet.flag("fp16")
    if bf16 or fp16:
        sheet.put("training.dtype", "bf16" if bf16 else "fp16")
        return
    sheet.put("training.dtype", "auto")
    sheet.note("dtype: neither bf16 nor fp16 is asked for, so the Trainer computes in the type the "
        "weights are stored in;"
               " training.dtype stays auto")  # fmt: skip


def put_optimizer(sheet: Sheet, key: str = "optim") -> None:
    """Map the optimizer."""
    name = sheet.word(key, "adamw_torch_fused") or "adamw_torch_fused"
    kind = name.rpartition(".")[2].lower()
    known = OPTIMIZERS.get(kind)
    if known is None:
        sheet.tell(key, "llmsys has no such optimizer; AdamW stands in", "Set training.optimizer", value=name)
    sheet.put("training.optimizer", known or "torch_adamw")


def put_tracking(sheet: Sheet) -> None:
    """Map logging, mirrors and checkpoints."""
    every = sheet.count("logging_steps")
    if every is not None and every > 0:
        sheet.put("training.log_every", every)
    mirrors = [one for one in sheet.names("report_to") if one.lower() not in ("none", "all")]
    ours = [one for one in mirrors if one in MIRRORS]
    if ours:
        sheet.put("tracking.mirrors", ours)
    if len(ours) < len(mirrors):
        other = ", ".join(one for one in mirrors if one not in MIRRORS)
        sheet.tell("report_to", f"metrics are not sent to {other}", value=other, matters=False)
    _put_saving(sheet)


def _put_saving(sheet: Sheet) -> None:
    strategy, every = sheet.word("save_strategy", "steps"), sheet.number("save_steps")
    if strategy == "steps" and every is not None and every >= 1:
        sheet.put("checkpoint.every", int(every))
    elif strategy == "epoch":
        sheet.tell(
            "save_strategy", "checkpoints are counted in steps", "Set checkpoint.every=STEPS", matters=False
        )
    kept = sheet.count("save_total_limit")
    if kept is not None and kept > 0:
        sheet.put("checkpoint.keep_last", kept)


def put_evaluation(sheet: Sheet, *, has_rows: bool) -> None:
    """Map evaluation in mid-training, for which there must be held-out rows."""
    older = sheet.word("evaluation_strategy")
    strategy = sheet.word("eval_strategy") or older or "no"
    every = sheet.number("eval_steps")
    if strategy == "steps" and has_rows and every is not None and every >= 1:
        sheet.put("training.evaluate_every", int(every))
    elif strategy != "no" and has_rows:
        sheet.tell(
            "eval_strategy",
            "evaluations are counted in steps",
            "Set training.evaluate_every=STEPS",
            value=strategy,
            matters=False,
        )
    elif strategy != "no":
        what = "there are no held-out rows"
        sheet.tell("eval_strategy", what, "Give data.heldout=FILE", value=strategy, matters=False)
    if sheet.flag("load_best_model_at_end"):
        sheet.tell("load_best_model_at_end", "the last weights are the result", "Set checkpoint.keep_best=1")
