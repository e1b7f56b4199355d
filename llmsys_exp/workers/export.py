"""Merge the adapters into the base model and write one ordinary model folder.

python -m llmsys_exp.workers.export RUN_FOLDER
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from llmsys_exp.config.schema import Dtype, MethodKind
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.data.encode import encode_prompt
from llmsys_exp.workers.data.rows import Row
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job, folder_argument, load_job
from llmsys_exp.workers.models.load import load_model_folder
from llmsys_exp.workers.models.tokenizer import load_tokenizer
from llmsys_exp.workers.ranks import pick_device, quieten, seed_everything, use_threads_of_environment
from llmsys_exp.workers.training.saving import in_16_bit, write_model_folder

CHECK_PROMPTS = (Row("Name the capital of France."), Row("Give three colours.", "One word each."))
TOLERANCE = {Dtype.fp32: 1e-4, Dtype.bf16: 5e-2, Dtype.fp16: 1e-2}
"""Largest difference of a logit after merging, as a share of the largest logit: that much is rounding."""


@dataclass(frozen=True)
class MergeCheck:
    """Evidence that the merge did something, and the right thing."""

    changed_weights: int
    largest_weight_change: float
    largest_logit_difference: float
    """Between the model with adapters and the merged one, as a share of the largest logit."""
    tolerance: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for the results file."""
        return dict(vars(self))


def export(job: Job) -> None:
    """Write `merged/` and `results/export.json`."""
    started = time.monotonic()
    if job.config.method.kind in (MethodKind.lora, MethodKind.qlora):
        figures = _merge_adapters(job)
    else:
        figures = _describe_whole_model(job)
    size = sum(one.stat().st_size for one in job.paths.merged.iterdir())
    summary = {"method": job.config.method.kind.name, "folder": "merged", "folder_bytes": size, **figures}
    write_json(job.paths.result("export"), summary | {"seconds": time.monotonic() - started})


def _merge_adapters(job: Job) -> dict[str, Any]:
    from peft import PeftModel

    _need_folder(job.paths.adapter, what="adapter")
    device = pick_device(job.resolved.device)
    events.phase("load model")
    tokenizer = load_tokenizer(job)
    base = load_model_folder(job, job.model_source).to(device)
    adapted = PeftModel.from_pretrained(base, str(job.paths.adapter)).eval()
    events.phase("merge")
    wanted = _logits(adapted, tokenizer)
    before = _adapted_weights(adapted)
    merged = adapted.merge_and_unload(safe_merge=True)
    check = _check_merge(before, merged, wanted, _logits(merged, tokenizer), job.config.training.dtype)
    events.phase("save")
    weights = {name: in_16_bit(one) for name, one in merged.named_parameters()}
    write_model_folder(merged, tokenizer, job.paths.merged, weights=weights)
    stored = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    return {"check": check.to_dict(), "computed_in": job.config.training.dtype.name, "stored_as": stored}


def _describe_whole_model(job: Job) -> dict[str, Any]:
    """Training has written the folder; show that it loads and answers with numbers."""
    _need_folder(job.paths.merged, what="model")
    events.phase("load model")
    model = load_model_folder(job, str(job.paths.merged)).to(pick_device(job.resolved.device))
    largest = max(float(one.abs().max()) for one in _logits(model, load_tokenizer(job)))
    return {"largest_logit": largest, "computed_in": job.config.training.dtype.name}


def _need_folder(folder: Any, *, what: str) -> None:
    if not folder.is_dir():
        raise UserError(
            f"There is no trained {what}",
            where=str(folder),
            do="Train first: llmsys train with steps=[train,export]",
        )


def _logits(model: Any, tokenizer: Any) -> list[Any]:
    import torch

    device = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for row in CHECK_PROMPTS:
            ids = torch.tensor([encode_prompt(tokenizer, row)], device=device)
            found.append(model(input_ids=ids).logits.float().cpu())
    return found


def _adapted_weights(model: Any) -> dict[str, Any]:
    """Return copies of the base weights under the adapters, by their name in the plain model."""
    names = (name for name, _ in model.named_parameters() if ".base_layer.weight" in name)
    prefix = "base_model.model."
    return {
        name.removeprefix(prefix).replace(".base_layer", ""): model.get_parameter(name).detach().clone()
        for name in names
    }


def _check_merge(before: dict[str, Any], merged: Any, wanted: Any, got: Any, dtype: Dtype) -> MergeCheck:
    changes = [float((merged.get_parameter(name) - old).abs().max()) for name, old in before.items()]
    scale = max(float(one.abs().max()) for one in wanted)
    difference = max(float((a - b).abs().max()) for a, b in zip(wanted, got, strict=True)) / scale
    check = MergeCheck(
        sum(one > 0 for one in changes), max(changes, default=0.0), difference, TOLERANCE[dtype]
    )
    if not check.changed_weights:
        raise JobError("The merged weights equal the base weights", kind="merge", do="Train for more steps")
    # not "greater": a NaN must fail as well
    if not check.largest_logit_difference <= check.tolerance:
        raise JobError(
            f"Merging changed the logits by {difference:.2g} of the largest, not {check.tolerance:.2g}",
            kind="merge",
        )
    return check


def main() -> None:
    """Entry point."""
    job = load_job(folder_argument(sys.argv[1:], worker="export"))
    use_threads_of_environment()
    quieten()
    seed_everything(job.config.seed)
    export(job)


if __name__ == "__main__":
    run_and_exit(main)
