"""Answer a file of prompts with the trained model, or with the base model where none was trained.

python -m llmsys_exp.workers.infer RUN_FOLDER
python -m llmsys_exp.workers.infer --stdin      a run folder a line, one engine for as many as it does for
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from llmsys_exp.errors import EXIT_OK
from llmsys_exp.workers import events
from llmsys_exp.workers.engines.base import EngineError
from llmsys_exp.workers.exits import run_and_exit, tell
from llmsys_exp.workers.inference.run import answer_job
from llmsys_exp.workers.inference.slot import EngineSlot
from llmsys_exp.workers.job import folder_argument, load_job
from llmsys_exp.workers.training import oom

STDIN = "--stdin"


def main() -> None:
    """Entry point."""
    with closing(EngineSlot()) as slot:
        if sys.argv[1:] == [STDIN]:
            answer_each(sys.stdin, slot)
        else:
            job = load_job(folder_argument(sys.argv[1:], worker="infer"))
            oom.remember(job.plan)
            answer_job(job, slot)


def answer_each(folders: Iterable[str], slot: EngineSlot) -> None:
    """Do one run folder after the other; what goes wrong in one is told and ends no other."""
    for line in folders:
        folder = line.strip()
        if folder:
            events.done(folder, code=_answer_one(folder, slot))


def _answer_one(folder: str, slot: EngineSlot) -> int:
    try:
        job = load_job(Path(folder))
        oom.remember(job.plan)
        answer_job(job, slot)
    except Exception as error:
        if isinstance(error, EngineError) or oom.kind_of(error) is not None:
            slot.close()  # it answers no more, or sits on memory: the next run starts another
        return tell(error)
    return EXIT_OK


if __name__ == "__main__":
    run_and_exit(main)
