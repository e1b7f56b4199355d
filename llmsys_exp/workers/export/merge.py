"""Adapters merged into the base, one matrix at a time: no second copy of the model is made."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Dtype, MethodKind, Weights
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.export.answers import TOLERANCE, difference, logits_of
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.load import load_base_model, load_model_folder, torch_dtype
from llmsys_exp.workers.training.saving import PEFT_PREFIX


@dataclass(frozen=True)
class MergeCheck:
    """Evidence that the merge did something, and the right thing."""

    changed_weights: int
    adapted_weights: int
    largest_weight_change: float
    largest_logit_difference: float
    """Between the model with adapters and the merged one, as a share of the largest logit."""
    tolerance: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for the results file."""
        return asdict(self)


@dataclass(frozen=True)
class Merged:
    """A merged model, still in memory."""

    model: Any
    wanted: list[Any]
    """Logits of the model with adapters."""
    adapted: frozenset[str]
    check: MergeCheck


def merge(job: Job, tokenizer: Any, base: str, *, device: Any) -> Merged:
    """Load the base unquantised, put the adapters on, merge, and check that both say the same.

    Raises:
        JobError: when nothing changed, or the merged model answers otherwise.
    """
    from peft import PeftModel

    events.phase("load model")
    adapted = PeftModel.from_pretrained(_load(job, base, device), str(job.paths.adapter)).eval()
    wanted = logits_of(adapted, tokenizer)
    events.phase("merge")
    changes = _merge_each(adapted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that all of them are merged already
        model = adapted.merge_and_unload(safe_merge=True)
    check = MergeCheck(
        changed_weights=sum(change > 0 for change in changes.values()),
        adapted_weights=len(changes),
        largest_weight_change=max(changes.values(), default=0.0),
        largest_logit_difference=difference(wanted, logits_of(model, tokenizer)),
        tolerance=TOLERANCE[job.config.training.dtype],
    )
    _judge(check)
    return Merged(model, wanted, frozenset(changes), check)


def quantized_answers(job: Job, tokenizer: Any, *, device: Any) -> list[Any] | None:
    """Return the logits of the adapters over the quantised base, as trained; None without a GPU."""
    from peft import PeftModel

    if device.type != "cuda":
        return None
    events.phase("load quantised model")
    base = load_base_model(job, device=device)
    return logits_of(PeftModel.from_pretrained(base, str(job.paths.adapter)).eval(), tokenizer)


def refuse_packed_base(job: Job) -> None:
    """Refuse to merge into a GPTQ base, whose packed weights cannot take an update."""
    method = job.config.method
    if method.kind is MethodKind.qlora and method.quantization.kind == "gptq":
        raise UserError(
            "An adapter over a GPTQ base cannot be merged",
            where="method.quantization.kind=gptq",
            why="The base is packed in a few bits with scales of its own: an update does not fit into them",
            do="Serve adapter/ beside the base, or train over the unquantised model",
        )


def check_stored(job: Job, tokenizer: Any, folder: Path, wanted: list[Any], *, device: Any) -> float:
    """Load the written folder and return how far its logits are from those of the adapted model.

    Raises:
        JobError: when it is more than rounding.
    """
    events.phase("check what was written")
    apart = difference(wanted, logits_of(load_model_folder(job, str(folder)).to(device), tokenizer))
    stored = Dtype.fp16 if job.config.training.dtype is Dtype.fp16 else Dtype.bf16
    if not apart <= TOLERANCE[stored]:
        raise JobError(
            f"The written model's logits are {apart:.2g} of the largest away, not {TOLERANCE[stored]:.2g}",
            kind="merge",
        )
    return apart


def _load(job: Job, base: str, device: Any) -> Any:
    """Load the base; random weights below a quantised model were drawn on the host."""
    if job.config.method.kind is MethodKind.qlora and job.config.model.weights is Weights.random:
        from llmsys_exp.workers.models.random_weights import random_model

        compute = torch_dtype(job.config.training.dtype)
        return random_model(job, device="cpu", dtype=compute, attn_implementation="sdpa").to(device)
    return load_model_folder(job, base).to(device)


def _merge_each(model: Any) -> dict[str, float]:
    """Merge layer by layer; return the largest change of each weight, by its name in the plain model."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    changes: dict[str, float] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer) or not hasattr(layer, "base_layer"):
            continue
        weight = getattr(layer.get_base_layer(), "weight", None)
        before = None if weight is None else weight.detach().clone()
        layer.merge(safe_merge=True)
        if before is not None:
            after = layer.get_base_layer().weight
            change = float((after.detach() - before).abs().max())
            changes[f"{name.removeprefix(PEFT_PREFIX)}.weight"] = change
    return changes


def _judge(check: MergeCheck) -> None:
    if not check.changed_weights:
        raise JobError("The merged weights equal the base weights", kind="merge", do="Train for more steps")
    # not "greater": a NaN must fail as well
    if not check.largest_logit_difference <= check.tolerance:
        raise JobError(
            f"Merging changed the logits by {check.largest_logit_difference:.2g} of the largest, "
            f"not {check.tolerance:.2g}",
            kind="merge",
        )
