"""`llmsys VERB ...`: find the verb, run it, turn every error into one message and an exit code.

Verbs are imported when called, so that `--help` and `plan` never pay for the others.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType

from llmsys_exp.errors import EXIT_INTERRUPTED, EXIT_OK, JobError, UserError, unknown_name

EXIT_BUG = 1

VERBS = {
    "plan": "forecast memory and time, and show every setting with its reason; starts nothing",
    "train": "run an experiment: train, then whatever `steps` lists",
    "recommend": "the fastest settings that fit, and what faster ones lack; starts nothing",
    "infer": "answer prompts with a model",
    "sweep": "run many points, skip what does not fit, go on after anything",
    "import": "turn a configuration of another tool into an experiment",
    "export-config": "write a configuration for another tool: LLaMA-Factory, DeepSpeed, a script",
    "export": "merge the adapter of a finished run into a plain model folder",
    "runs": "list run folders; follow, show and clear away single ones",
    "compare": "what was different between runs, and what came of it",
    "report": "one page of a run or a sweep, to open in a browser",
    "reproduce": "run a recorded run again, and compare it metric by metric",
    "calibrate": "measure this machine, so that later plans count with it",
    "doctor": "what is here, what does not go together, and how to mend it",
}
MODULES = {"import": "import_config", "export-config": "export_config"}
"""Verbs whose module has another name."""
CALIBRATED, NO_CALIBRATION = ("plan", "train", "recommend", "sweep"), "--no-calibration"
"""Verbs whose forecasts count with what `llmsys calibrate` has measured, and the flag that says not to."""


def main(argv: list[str] | None = None) -> None:
    """Console entry point; ends the process."""
    arguments = sys.argv[1:] if argv is None else argv
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code, errors reported."""
    try:
        return _dispatch(arguments)
    except UserError as error:
        _report(error, as_json="--json" in arguments)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted: everything started has been stopped.\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has left; a second error at exit would only confuse.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception:
        import traceback

        traceback.print_exc()
        sys.stderr.write(
            "\nThis is a mistake in llmsys, not yours. Please report it with `llmsys doctor --json`.\n"
        )
        return EXIT_BUG


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from llmsys_exp.cli.help import overview

        sys.stdout.write(overview(VERBS))
        return EXIT_OK
    verb, *rest = arguments
    if verb in ("-V", "--version"):
        from importlib.metadata import version

        sys.stdout.write(f"llmsys {version('llmsys-exp')}\n")
        return EXIT_OK
    if verb not in VERBS:
        raise unknown_name("verb", verb, list(VERBS), where="llmsys --help explains them")
    if verb in CALIBRATED and NO_CALIBRATION in rest:
        # as a variable, so that the processes of a sweep hear of it and records tell it
        os.environ["LLMSYS_CALIBRATION"] = "off"
        rest = [text for text in rest if text != NO_CALIBRATION]
    return import_module(f"llmsys_exp.cli.{MODULES.get(verb, verb)}").run(rest)


def _report(error: UserError, *, as_json: bool) -> None:
    if as_json:
        import json

        content = {"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return
    from llmsys_exp.report.console import Console

    console = Console.on(sys.stderr)
    console.line(console.style("error: ", "bold", "red") + str(error))
    if isinstance(error, JobError) and error.log_tail:
        console.line("Last lines of the log:")
        for line in error.log_tail.splitlines():
            console.line(console.style(f"  | {line}", "dim"))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
