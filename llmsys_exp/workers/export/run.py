"""The step `export`: merge or describe, cut into files, check what was written, record it."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import MethodKind, Weights
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.inputs.weight_files import stored_tensors
from llmsys_exp.workers import events
from llmsys_exp.workers.export.answers import largest, logits_of
from llmsys_exp.workers.export.belongs import check_adapter
from llmsys_exp.workers.export.merge import check_stored, merge, quantized_answers, refuse_packed_base
from llmsys_exp.workers.export.reshard import is_cut_to, reshard
from llmsys_exp.workers.export.room import device_for, need_disk, need_host
from llmsys_exp.workers.export.stored import compare_with_base, hashes
from llmsys_exp.workers.files import remove_leftovers, whole_folder, write_json
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.load import load_model_folder
from llmsys_exp.workers.models.tokenizer import load_tokenizer
from llmsys_exp.workers.quantization.peak import Peak
from llmsys_exp.workers.shards import GB
from llmsys_exp.workers.training.saving import named_weights, write_model_folder


def export(job: Job) -> None:
    """Write `merged/` and `results/export.json`."""
    started = time.monotonic()
    remove_leftovers(job.paths.merged)
    adapters = job.config.method.kind in (MethodKind.lora, MethodKind.qlora)
    figures = _merge_adapters(job) if adapters else _describe_whole_model(job)
    size = sum(one.stat().st_size for one in job.paths.merged.iterdir())
    summary = {"method": job.config.method.kind.name, "folder": "merged", "folder_bytes": size, **figures}
    write_json(job.paths.result("export"), summary | {"seconds": time.monotonic() - started})


def template_tokenizer(job: Job, *, source: str | None = None) -> Any:
    """Return the tokenizer with the chat template that the run was trained with."""
    from llmsys_exp.workers.data.templates import use_template

    tokenizer = load_tokenizer(job, source=source)
    if job.config.data.template is not None:
        use_template(tokenizer, job.config.data.template)
    return tokenizer


def _merge_adapters(job: Job) -> dict[str, Any]:
    refuse_packed_base(job)
    _need_folder(job.paths.adapter, what="adapter")
    base = _base_folder(job)
    check_adapter(job.paths.adapter, base)
    need_disk(job, base)
    planned = need_host(job, base)
    tokenizer, device = template_tokenizer(job), device_for(job, base)
    peak = Peak.begin(device)
    quantised = None
    if job.config.method.kind is MethodKind.qlora:
        quantised = quantized_answers(job, tokenizer, device=device)
        _let_go(device)
    done = merge(job, tokenizer, str(base or job.model_source), device=device)
    adapted, wanted = done.adapted, done.wanted
    figures: dict[str, Any] = {"check": done.check.to_dict(), "computed_in": job.config.training.dtype.name}
    if quantised is not None:
        from llmsys_exp.workers.export.answers import difference

        figures["difference_to_quantised"] = difference(wanted, quantised)
    events.phase("save")
    with whole_folder(job.paths.merged) as folder:
        figures |= write_model_folder(
            done.model, tokenizer, folder, weights=named_weights(done.model), shard_bytes=_shard_bytes(job)
        )
        del done
        _let_go(device)
        figures["stored"] = {
            "logit_difference": check_stored(job, tokenizer, folder, wanted, device=device),
            **_against_base(base, folder, adapted),
        }
        figures |= hashes(base, folder) | {"memory": {"planned_host_bytes": planned, **peak.end()}}
    return figures | {"stored_as": _stored_as(job.paths.merged), "base": str(base or job.model_source)}


def _against_base(base: Path | None, written: Path, adapted: frozenset[str]) -> dict[str, int]:
    """Show that the files hold another model than the base."""
    if base is None or not stored_tensors(base):
        return {}
    found = compare_with_base(base, written, adapted)
    if found.common and not found.changed:
        raise JobError(
            "The written weights equal those of the base",
            kind="merge",
            do="Train for more steps, or with a higher training.learning_rate",
        )
    if found.adapted_unchanged:
        events.note(
            f"{found.adapted_unchanged} of {len(adapted)} adapted weights came out unchanged: "
            "their update is smaller than the rounding to 16 bit."
        )
    return dict(vars(found))


def _describe_whole_model(job: Job) -> dict[str, Any]:
    """Training has written the folder: cut it as asked for, and show that it answers with numbers."""
    merged = job.paths.merged
    _need_folder(merged, what="model")
    recut = not is_cut_to(merged, _shard_bytes(job))
    if recut:
        need_disk(job, merged)
        events.phase("save")
        reshard(merged, template_tokenizer(job, source=str(merged)), _shard_bytes(job))
    device = device_for(job, merged)
    events.phase("load model")
    model = load_model_folder(job, str(merged)).to(device)
    found = largest(logits_of(model, load_tokenizer(job, source=str(merged))))
    if not found < float("inf"):
        raise JobError("The model answers with NaN or infinite logits", kind="export", where=str(merged))
    tensors = stored_tensors(merged)
    base = _base_folder(job)
    return {
        "largest_logit": found,
        "computed_in": job.config.training.dtype.name,
        "stored_as": _stored_as(merged),
        "recut": recut,
        "files": sorted({one.file.name for one in tensors.values()}),
        "parameters": sum(one.numel for one in tensors.values()),
        "stored": _against_base(base, merged, frozenset()),
        **hashes(base, merged),
    }


def _base_folder(job: Job) -> Path | None:
    """The folder of the base: what training made of it (`train_base`), else the model's own."""
    if job.paths.trained_base.is_dir():
        return job.paths.trained_base
    if job.config.model.weights is Weights.random:
        return None
    return job.resolved.model_folder


def _shard_bytes(job: Job) -> int:
    return int(job.config.export.shard_gb * GB)


def _stored_as(folder: Path) -> str:
    return (
        next(iter(stored_tensors(folder).values())).dtype.lower().replace("f", "fp", 1).replace("bfp", "bf")
    )


def _let_go(device: Any) -> None:
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


def _need_folder(folder: Path, *, what: str) -> None:
    if not folder.is_dir():
        raise UserError(
            f"There is no trained {what}",
            where=str(folder),
            do="Train first: llmsys train with steps=[train,export]",
        )
