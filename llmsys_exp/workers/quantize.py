"""Quantise the merged model with GPTQ, and show that the result loads and answers.

python -m llmsys_exp.workers.quantize RUN_FOLDER
"""

from __future__ import annotations

import gc
import shutil
import sys
import time
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.inputs.weight_files import sha256_of_files, stored_tensors
from llmsys_exp.workers import events
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.export.run import template_tokenizer
from llmsys_exp.workers.files import remove_leftovers, whole_folder, write_json
from llmsys_exp.workers.job import Job, folder_argument, load_export_job
from llmsys_exp.workers.models.load import load_model_folder
from llmsys_exp.workers.quantization.calibration import Rows, load_rows
from llmsys_exp.workers.quantization.gptq import check_packed, load_quantised, prepare_environment, quantise
from llmsys_exp.workers.quantization.peak import Peak
from llmsys_exp.workers.quantization.quality import quality
from llmsys_exp.workers.ranks import pick_device, prepare_alone
from llmsys_exp.workers.shards import GB, told_when_full


def quantize(job: Job) -> None:
    """Write `quantized/` and `results/quantize.json`."""
    started = time.monotonic()
    merged, settings = job.paths.merged, job.config.export.gptq
    if not merged.is_dir():
        raise UserError(
            "There is no model to quantise",
            where=str(merged),
            do="Export first: steps=[train,export,quantize], or `llmsys export RUN_FOLDER`",
        )
    remove_leftovers(job.paths.quantized)
    device, trust = pick_device(job.resolved.device), job.config.model.trust_remote_code
    tokenizer = template_tokenizer(job, source=str(merged))
    rows = load_rows(job, tokenizer)
    before = _measure(load_model_folder(job, str(merged)).to(device), tokenizer, rows, "before")
    _let_go()
    events.phase("quantise")
    with whole_folder(job.paths.quantized) as folder, told_when_full(job.paths.quantized):
        peak = Peak.begin(device)
        quantise(
            merged,
            folder,
            rows.calibration,
            settings,
            device=device,
            shard_bytes=int(job.config.export.shard_gb * GB),
            trust=trust,
        )
        measured = peak.end()
        shutil.rmtree(folder / "offload", ignore_errors=True)
        tokenizer.save_pretrained(folder)
        packed = check_packed(folder, settings.bits)
        _let_go()
        after = _measure(load_quantised(folder, device=device, trust=trust), tokenizer, rows, "after")
        files = sha256_of_files(folder)
    unpacked = sum(one.nbytes for one in stored_tensors(merged).values())
    summary = {
        "folder": "quantized",
        "group_size": settings.group_size,
        **packed,
        "weights_bytes_before": unpacked,
        "calibration": {"rows": len(rows.calibration), "tokens": rows.calibration_tokens},
        "measured_on": {"what": rows.measured_on, "rows": len(rows.measured)},
        "before": before,
        "after": after,
        "memory": measured,
        "weights_sha256": files,
        "seconds": time.monotonic() - started,
    }
    write_json(job.paths.result("quantize"), summary)


def _measure(model: Any, tokenizer: Any, rows: Rows, when: str) -> dict[str, Any]:
    events.phase(f"measure {when} quantising")
    return quality(model, tokenizer, rows.measured)


def _let_go() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Entry point."""
    prepare_environment()
    job = load_export_job(folder_argument(sys.argv[1:], worker="quantize"))
    prepare_alone(job.config.seed)
    quantize(job)


if __name__ == "__main__":
    run_and_exit(main)
