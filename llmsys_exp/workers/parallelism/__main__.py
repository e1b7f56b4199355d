"""Compare ways of training on several ranks: a process a rank, started by a launcher.

python -m torch.distributed.run --nproc_per_node 2 -m llmsys_exp.workers.parallelism RUN_FOLDER
"""

from __future__ import annotations

import sys

from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.job import folder_argument, load_job
from llmsys_exp.workers.parallelism.run import Comparison
from llmsys_exp.workers.ranks import join, quieten


def main() -> None:
    """Entry point."""
    job = load_job(folder_argument(sys.argv[1:], worker="parallelism"))
    ranks = join(job)
    quieten()
    Comparison(job, ranks).run()


if __name__ == "__main__":
    run_and_exit(main)
