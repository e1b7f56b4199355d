"""A Hydra program for the tests of `hydra/launcher=llmsys_lease`; what a job does is the value of `what`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEN_AT_IMPORT = {key: os.environ.get(key) for key in ("MASTER_PORT", "CUDA_VISIBLE_DEVICES")}

import hydra  # noqa: E402
from hydra.core.config_store import ConfigStore  # noqa: E402
from hydra.core.hydra_config import HydraConfig  # noqa: E402
from hydra.experimental.callback import Callback  # noqa: E402


@dataclass
class Settings:
    what: str = "ok"
    number: int = 0


ConfigStore.instance().store(name="settings", node=Settings)


class Watch(Callback):
    def __init__(self) -> None:
        self.greeting = ""

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        self.greeting = f"hello from {os.getpid()}"

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        out = Path(config.hydra.runtime.output_dir)
        told = {"greeting": self.greeting, "status": job_return.status.name, "pid": os.getpid()}
        (out / "callback.json").write_text(json.dumps(told))


class Odd(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


@hydra.main(version_base="1.3", config_path=None, config_name="settings")
def main(settings: Any) -> Any:
    out = Path(HydraConfig.get().runtime.output_dir)
    began = time.time()
    helper = subprocess.Popen(["sleep", "77"], start_new_session=True) if settings.what == "slow" else None
    (out / "begun.json").write_text(json.dumps([os.getpid(), helper.pid if helper else None]))
    if settings.what == "fail":
        raise ValueError(f"unlucky {settings.number}")
    if settings.what == "odd":
        raise Odd("a", "b")
    if settings.what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if helper is not None:
        helper.wait()
    if settings.what == "short":
        time.sleep(0.3)
    seen = {
        "cores": sorted(os.sched_getaffinity(0)),
        "group": os.getpgrp(),
        "type": HydraConfig.get().mode.name,
        "began": began,
        "ended": time.time(),
        **SEEN_AT_IMPORT,
    }
    (out / "seen.json").write_text(json.dumps(seen))
    return (lambda: 0) if settings.what == "function" else settings.number * 2


if __name__ == "__main__":
    from llmsys_exp.sweeps.launcher import launch as module

    def told(*asked: Any) -> Any:
        returned = real(*asked)
        rows = [[one.status.name, str(one._return_value), list(one.overrides)] for one in returned]
        Path("returned.json").write_text(json.dumps(rows))
        return returned

    real, module.launch = module.launch, told
    main()
    sys.exit(0)
