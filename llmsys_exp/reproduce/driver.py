"""Run recorded settings with the package that is first on the search path, an older one perhaps.

    PYTHONPATH=CODE python driver.py ORDER.json FOLDER_FILE

Started as a file by `code_of_then`, so that it imports that code and not the one it lies in. It keeps to what
all versions have had: `from_plain`, `Run`, `run_steps`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any


def main() -> int:
    """Read the order, run it, write the run folder's name."""
    # as a file, its own folder would come first
    sys.path[:] = [one for one in sys.path if Path(one or ".").resolve() != Path(__file__).resolve().parent]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import llmsys_exp

    found = Path(str(llmsys_exp.__file__)).resolve()
    if not found.is_relative_to(Path(order["code"]).resolve()):
        sys.stderr.write(f"error: {found} was imported, not the code of then\n")
        return 2
    from llmsys_exp.errors import UserError

    try:
        manifest = _run(order)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    Path(sys.argv[2]).write_text(manifest["folder"], encoding="utf-8")
    return 0


def _run(order: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import fields

    from llmsys_exp.config.plain import from_plain
    from llmsys_exp.config.schema import Step

    try:
        from llmsys_exp.jobs.job import Run
        from llmsys_exp.jobs.pipeline import run_steps
        from llmsys_exp.report.console import Console
    except ModuleNotFoundError:  # before these had folders of their own
        from llmsys_exp.console import Console
        from llmsys_exp.job import Run
        from llmsys_exp.pipeline import run_steps
    known = {one.name for one in fields(Run)}
    told = {
        "config": from_plain(order["config"]),
        "steps": [Step[name] for name in order["steps"]],
        "command": tuple(order["command"]),
        "adapter": order["adapter"],
        "overrides": tuple(order["overrides"]),
        "reproduces": order["reproduces"],
    }
    run = Run(**{key: value for key, value in told.items() if key in known})
    # the search path has told the parent; workers get it in their environment
    os.environ.setdefault("PYTHONPATH", order["code"])
    return run_steps(run, Console.on(sys.stdout))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
