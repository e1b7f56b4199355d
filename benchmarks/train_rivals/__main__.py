"""One program in this process: `python -m benchmarks.train_rivals NAME JOB.json`; `inputs` makes what all load."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.train_rivals import RIVALS
from benchmarks.train_rivals.inputs import make_inputs
from benchmarks.train_rivals.job import Job

PAD_ID = 0


def main() -> None:
    """Command line."""
    name, job = sys.argv[1], Job.read(Path(sys.argv[2]))
    if name == "inputs":
        make_inputs(job)
        return
    rival = import_module(RIVALS[name])
    if hasattr(rival, "prepare"):
        rival.prepare(job)  # what must stand in the environment before torch is imported
    from benchmarks.train_rivals.turns import watch

    if job.device == "cpu":
        import deepspeed

        # without this it compiles an operator first; gloo does the same work
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    watch(PAD_ID)
    rival.train(job)


if __name__ == "__main__":
    main()
