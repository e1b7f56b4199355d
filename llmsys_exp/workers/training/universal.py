"""Take a checkpoint to another number of ranks, through DeepSpeed's universal format.

At stage 0 every rank holds everything and nothing need be converted. DeepSpeed converts stages 1 to 3 and
keeps the stage: from one stage to another is refused before, as a setting that must not change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.errors import JobError
from llmsys_exp.runs.checkpoints import CONVERTED, Checkpoint
from llmsys_exp.workers import events
from llmsys_exp.workers.ranks import Ranks

DONE = "converted"
LOOK_AGAIN_S = 0.2
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
LOADS_UNIVERSAL = {"checkpoint": {"load_universal": True}}
"""What the engine's configuration must say before it can load a converted checkpoint."""


def needs_conversion(state: Mapping[str, Any], *, world_size: int) -> bool:
    """Return whether a checkpoint was written by another number of ranks that shared the optimizer out."""
    return state["world_size"] != world_size and state["zero_stage"] > 0


def convert(checkpoint: Checkpoint, *, ranks: Ranks) -> Path:
    """Convert on rank 0 and return the folder; it is for loading only and goes afterwards.

    The other ranks look for a file: a collective would run into its time limit with large models.
    """
    target = checkpoint.folder.with_name(f"{CONVERTED}{checkpoint.folder.name}")
    events.phase(f"convert {checkpoint.folder.name} to {ranks.world_size} ranks")
    if ranks.is_first:
        shutil.rmtree(target, ignore_errors=True)
        _run_converter(checkpoint.folder, target)
        (target / DONE).touch()
    while not (target / DONE).exists():
        time.sleep(LOOK_AGAIN_S)
    return target


def _run_converter(source: Path, target: Path) -> None:
    workers = str(max(1, len(os.sched_getaffinity(0)) // 2))
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    command += ["--input_folder", str(source), "--output_folder", str(target)]
    command += ["--num_extract_workers", workers, "--num_merge_workers", workers]
    # a process of its own: it must not take itself for a rank, nor touch the GPU
    env = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}
    env |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    if done.returncode == 0:
        return
    sys.stdout.write(done.stderr)
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    shutil.rmtree(target, ignore_errors=True)
    raise JobError(
        f"DeepSpeed cannot convert {source.name} to another number of ranks: {last}",
        kind="resume",
        do="Go on with as many ranks as before (hardware.gpus_per_node)",
    )
