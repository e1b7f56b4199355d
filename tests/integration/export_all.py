"""Export several runs in one process: imports cost more than tiny merges do. A refusal is printed."""

from __future__ import annotations

import sys
from pathlib import Path

from llmsys_exp.errors import UserError
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.export.run import export
from llmsys_exp.workers.job import load_export_job
from llmsys_exp.workers.ranks import quieten, seed_everything


def main() -> None:
    quieten()
    for folder in sys.argv[1:]:
        job = load_export_job(Path(folder))
        seed_everything(job.config.seed)
        try:
            export(job)
        except UserError as error:
            (Path(folder) / "refused.txt").write_text(str(error), encoding="utf-8")


if __name__ == "__main__":
    run_and_exit(main)
