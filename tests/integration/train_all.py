"""Run the training worker's job on several folders in one process: imports cost more than tiny runs do."""

from __future__ import annotations

import sys
from pathlib import Path

from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.job import load_job
from llmsys_exp.workers.ranks import join, quieten, seed_everything
from llmsys_exp.workers.training.run import TrainingRun


def main() -> None:
    for folder in sys.argv[1:]:
        job = load_job(Path(folder))
        ranks = join(job)
        quieten()
        seed_everything(job.config.seed)
        TrainingRun(job, ranks).run()
    assert "torch._inductor.compile_fx" not in sys.modules, "a run that compiles nothing loads no compiler"


if __name__ == "__main__":
    run_and_exit(main)
