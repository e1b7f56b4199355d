"""Merge the adapters into the base model and write one ordinary model folder.

python -m llmsys_exp.workers.export RUN_FOLDER
"""

from __future__ import annotations

import sys

from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.export.run import export
from llmsys_exp.workers.job import folder_argument, load_export_job
from llmsys_exp.workers.ranks import prepare_alone


def main() -> None:
    """Entry point."""
    job = load_export_job(folder_argument(sys.argv[1:], worker="export"))
    prepare_alone(job.config.seed)
    export(job)


if __name__ == "__main__":
    run_and_exit(main)
