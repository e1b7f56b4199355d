"""Write the fp32 weights of a checkpoint, of any stage and number of ranks, as an ordinary folder.

python -m llmsys_exp.workers.consolidate RUN_FOLDER STEP

DeepSpeed's files are pickles: only those of a run folder whose hashes agree with its marker are read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Dtype
from llmsys_exp.errors import UserError
from llmsys_exp.runs.checkpoints import Checkpoint, folder_name
from llmsys_exp.workers import events
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.files import whole_folder, write_json
from llmsys_exp.workers.job import Job, load_job
from llmsys_exp.workers.methods import ADAPTED
from llmsys_exp.workers.methods.adapters import add_adapters
from llmsys_exp.workers.models.load import load_base_model
from llmsys_exp.workers.models.tokenizer import load_tokenizer
from llmsys_exp.workers.ranks import Ranks, pick_device, prepare_alone
from llmsys_exp.workers.shards import GB
from llmsys_exp.workers.training.saving import save_adapter, write_model_folder

STAGE_0_FILE = "mp_rank_00_model_states.pt"


def consolidate(job: Job, step: int) -> None:
    """Write `consolidated/step-N/` and `results/consolidate.json`."""
    started = time.monotonic()
    checkpoint = Checkpoint(job.paths.checkpoints / folder_name(step), step)
    problem = checkpoint.problem(read_all=True)
    if problem:
        raise UserError(f"{checkpoint.folder.name} is not whole: {problem}", where=str(checkpoint.folder))
    target = job.paths.consolidated / checkpoint.folder.name
    events.phase("read checkpoint")
    weights = fp32_weights(checkpoint)
    events.phase("write weights")
    adapters = job.config.method.kind in ADAPTED
    (_write_adapter if adapters else _write_model)(job, weights, target)
    figures = {
        "step": step,
        "what": "adapter" if adapters else "model",
        "zero_stage": checkpoint.state["zero_stage"],
        "parameters": sum(one.numel() for one in weights.values()),
        "seconds": time.monotonic() - started,
    }
    write_json(job.paths.result("consolidate"), figures)


def fp32_weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what training changed, and the rest where it was saved too, whole and in fp32.

    Stages 1 to 3 keep fp32 copies; at stage 0 the weights themselves are taken.
    """
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    folder, state = checkpoint.folder, checkpoint.state
    if state["zero_stage"] == 0:
        # a file of this very run, see above
        saved = torch.load(folder / STAGE_0_FILE, map_location="cpu", weights_only=False)["module"]
        return {name: one.float() if one.is_floating_point() else one for name, one in saved.items()}
    return get_fp32_state_dict_from_zero_checkpoint(
        str(folder.parent), tag=folder.name, exclude_frozen_parameters=state["frozen_left_out"]
    )


def _write_adapter(job: Job, weights: dict[str, Any], target: Path) -> None:
    """Put the weights into adapters over a model of shapes alone: the base is not needed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.from_pretrained(
        job.model_source,
        revision=job.config.model.revision,
        trust_remote_code=job.config.model.trust_remote_code,
    )
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(
            shape, trust_remote_code=job.config.model.trust_remote_code, dtype=torch.float32
        )
    base.name_or_path = job.model_source
    model = add_adapters(base, job.config.method.lora)
    known = {name for name, _ in model.named_parameters()}
    unknown = sorted(set(weights) - known - {name for name, _ in model.named_buffers()})
    if unknown:
        raise UserError(f"The checkpoint has weights that the adapter lacks: {', '.join(unknown[:3])}")
    model.load_state_dict(weights, strict=False, assign=True)
    save_adapter(model, target, ranks=_alone())


def _write_model(job: Job, weights: dict[str, Any], target: Path) -> None:
    config = replace(job.config, training=replace(job.config.training, dtype=Dtype.fp32, attention="sdpa"))
    model = load_base_model(replace(job, config=config), device=_alone().device)
    left = model.load_state_dict(weights, strict=False)
    if left.unexpected_keys:
        shown = ", ".join(left.unexpected_keys[:3])
        raise UserError(f"The checkpoint has weights that the model lacks: {shown}")
    shard_bytes = int(job.config.export.shard_gb * GB)
    with whole_folder(target) as temporary:
        tokenizer = load_tokenizer(job)
        write_model_folder(model, tokenizer, temporary, weights=_once(model), shard_bytes=shard_bytes)


def _once(model: Any) -> Iterator[tuple[str, Any]]:
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    seen: set[int] = set()
    for name, weight in model.state_dict(keep_vars=True).items():
        if name not in ignored and id(weight) not in seen:
            seen.add(id(weight))
            yield name, weight.detach()


def _alone() -> Ranks:
    return Ranks(rank=0, world_size=1, device=pick_device("cpu"))


def main() -> None:
    """Entry point."""
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        raise UserError("Usage: python -m llmsys_exp.workers.consolidate RUN_FOLDER STEP")
    job = load_job(Path(sys.argv[1]))
    prepare_alone(job.config.seed)
    consolidate(job, int(sys.argv[2]))


if __name__ == "__main__":
    run_and_exit(main)
