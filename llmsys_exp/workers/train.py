"""Fine-tune a model under DeepSpeed, one process a rank.

python -m llmsys_exp.workers.train RUN_FOLDER
deepspeed --no_local_rank --module llmsys_exp.workers.train RUN_FOLDER
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

from llmsys_exp.runs.lock import locked
from llmsys_exp.workers.determinism import told_plainly
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.job import folder_argument, load_job
from llmsys_exp.workers.ranks import join, quieten, seed_everything
from llmsys_exp.workers.training.run import TrainingRun


def main() -> None:
    """Entry point."""
    job = load_job(folder_argument(sys.argv[1:], worker="train"))
    # rank 0 writes, so it alone has to be alone; a second start is told before its ranks look for each other
    is_first = os.environ.get("RANK", "0") == "0"
    with locked(job.paths.worker_lock) if is_first else nullcontext():
        ranks = join(job)
        quieten()
        seed_everything(job.config.seed)
        with told_plainly():
            TrainingRun(job, ranks).run()


if __name__ == "__main__":
    run_and_exit(main)
