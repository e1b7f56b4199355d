"""Run one rank of a job for a few steps and write down what it held.

python -m llmsys_exp.workers.dryrun FOLDER

The folder holds job.json, ds_config.json and what is asked for in dryrun.json.
"""

from __future__ import annotations

import sys

from llmsys_exp.workers.dryrun.rehearse import rehearse
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.job import folder_argument, load_job


def main() -> None:
    """Entry point."""
    rehearse(load_job(folder_argument(sys.argv[1:], worker="dryrun")))


if __name__ == "__main__":
    run_and_exit(main)
