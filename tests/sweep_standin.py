"""Stands in for `llmsys_exp.sweeps.running.job` with a verb that only pretends to train: `python sweep_standin.py ...`.

What a point does is the value of `name`: ok, held, slow, short, fail, refuse, stopped, killed, crash, half or learn.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

from llmsys_exp.errors import EXIT_STOPPED, JobError, UserError
from llmsys_exp.runs.folder import create_run_folder
from llmsys_exp.sweeps.running.job import main


def run(arguments: list[str]) -> int:
    settings = dict(text.split("=", 1) for text in arguments)
    what = settings.get("name", "ok")
    if "resume" in settings:
        folder = Path(settings["resume"])
        if Path("nothing_left").exists():
            return 0
        if Path("refused").exists():
            raise UserError("This run cannot go on")
        (folder / "gone_on").touch()
    else:
        folder = create_run_folder(Path("out"), "standin", "00000000").folder
    (folder / "job.json").write_text(
        json.dumps({"pid": os.getpid(), "arguments": arguments, "at": time.time()})
    )
    manifest = ACTIONS[what](folder) if what in ACTIONS else None
    (folder / "seen.json").write_text(
        json.dumps(
            {
                "cores": sorted(os.sched_getaffinity(0)),
                "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "group": os.getpgrp(),
                "began": json.loads((folder / "job.json").read_text())["at"],
                "ended": time.time(),
            }
        )
    )
    (folder / "manifest.json").write_text(json.dumps(manifest or {}))
    if what == "half":
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def slow(folder: Path) -> None:
    worker = subprocess.Popen(["sleep", "77"], start_new_session=True)
    (folder / "worker").write_text(str(worker.pid))
    try:
        worker.wait()
    finally:
        worker.kill()
        worker.wait()


def fail(folder: Path) -> None:
    raise JobError("The GPU ran out of memory", kind="oom_gpu", log_tail="CUDA out of memory", do="Try less")


def refuse(folder: Path) -> None:
    raise UserError("training.micro_batch is no number")


def stopped(folder: Path) -> None:
    error = JobError("Stopped after step 3", kind="stopped")
    error.exit_code = EXIT_STOPPED
    raise error


def killed(folder: Path) -> None:
    if not Path("spared").exists():
        subprocess.Popen(["sleep", "77"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)


def crash(folder: Path) -> None:
    raise RuntimeError("a mistake of ours")


def learn(folder: Path) -> dict[str, object]:
    """Have a loss that is least at a learning rate of 1e-4, told in four steps; it waits while it is bad."""
    arguments = json.loads((folder / "job.json").read_text())["arguments"]
    settings = dict(text.split("=", 1) for text in arguments)
    loss = abs(math.log10(float(settings["training.learning_rate"])) + 4)
    with (folder / "metrics.jsonl").open("w") as stream:
        for step in (1, 2, 3, 4):
            stream.write(json.dumps({"step": step, "train/loss": 1 / step + loss}) + "\n")
            stream.flush()
            if step == 3 and loss > 0.9 and Path("slow_where_bad").exists():
                slow(folder)
    results = {"train": {"loss": {"last": loss}}}
    return {"schema_version": 1, "metrics": {"after": {"loss": loss}}, "results": results}


def held(folder: Path) -> None:
    while not Path("open").exists():
        time.sleep(0.05)


ACTIONS = {
    "held": held,
    "learn": learn,
    "slow": slow,
    "fail": fail,
    "refuse": refuse,
    "stopped": stopped,
    "killed": killed,
    "crash": crash,
    "short": lambda folder: time.sleep(0.4),
}


if __name__ == "__main__":
    module = types.ModuleType("llmsys_exp.cli.train")
    module.run = run  # type: ignore[attr-defined]
    sys.modules["llmsys_exp.cli.train"] = module
    sys.exit(main())
