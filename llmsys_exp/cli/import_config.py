"""`llmsys import FILE`: turn a configuration of another tool into an experiment; nothing is executed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.options import split_options, take_values, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console

if TYPE_CHECKING:
    from llmsys_exp.importers.experiment import Experiment

VALUES = {"-o": "NAME or FILE.yaml", "--format": "FORMAT", "--args": "'WORDS'"}
FLAGS = ("-o", "--format", "--args", "--force", "--json", "--help")
_HELP = """llmsys import - turn a configuration of another tool into an experiment

Usage:  llmsys import FILE [KEY=VALUE ...] [-o NAME | -o FILE.yaml] [--format FORMAT] [--args 'WORDS']
                      [--force] [--json]

Reads (by what stands in the file, or --format):
{formats}

Nothing in the file is executed. What has no counterpart is listed with what to do; KEY=VALUE settles it, and
wins over the file. The formats name no GPU: add hardware=NAME hardware.gpus_per_node=N. --args gives a script
its arguments. Without -o only what would be written is shown.

Examples:
  llmsys import train_lora.yaml hardware=rtx4090 -o my_lora
  llmsys import ds_config.json model=qwen2_5_7b method=full hardware=h100 hardware.gpus_per_node=8
  llmsys import run_llama2_7b_lora.sh --args './out 2' -o dschat_7b
  llmsys import saves/qwen/lora/sft
"""


def run(arguments: Sequence[str]) -> int:
    """Import one file."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_help())
        return EXIT_OK
    values, rest = take_values(rest, VALUES)
    force, rest = "--force" in rest, [text for text in rest if text != "--force"]
    for text in rest:
        if text.startswith("-"):
            raise unknown_argument(text.partition("=")[0], FLAGS, where="llmsys import")
    source, overrides = _split(rest)
    return _import(source, overrides, values, force=force, as_json=options.json)


def _help() -> str:
    from llmsys_exp.importers.registry import FORMATS

    width = max(map(len, FORMATS))
    formats = [f"  {name.ljust(width)}  {one.title}" for name, one in FORMATS.items()]
    return _HELP.format(formats="\n".join(formats))


def _split(rest: Sequence[str]) -> tuple[Path, list[str]]:
    files = [text for text in rest if "=" not in text or Path(text).exists()]
    if len(files) != 1:
        what = f"import takes one file, and here are {len(files)}" if files else "import takes a file"
        raise UserError(
            what, do="llmsys import FILE [KEY=VALUE ...]; llmsys import --help lists what is read"
        )
    return Path(files[0]), [text for text in rest if text != files[0]]


def _import(
    source: Path, overrides: Sequence[str], values: dict[str, str], *, force: bool, as_json: bool
) -> int:
    from llmsys_exp.importers import read
    from llmsys_exp.importers.experiment import build, model_shape, target, write
    from llmsys_exp.importers.registry import FORMATS

    path = target(values["-o"], force=force) if "-o" in values else None
    words = _words(values.get("--args", ""))
    imported = read(source, values.get("--format"), model=model_shape(overrides), arguments=words)
    experiment = build(imported, overrides)
    if path is not None:
        write(experiment, path, force=force)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(experiment, path), indent=2) + "\n")
        return EXIT_OK
    from llmsys_exp.importers.text import show_import

    console = Console.on(sys.stdout)
    title = FORMATS[imported.format].title if imported.format in FORMATS else "DeepSpeed-Chat, step 1"
    show_import(console, experiment, title)
    console.line()
    console.line(_last_line(path, source, values))
    return EXIT_OK


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(
            f"--args cannot be read: {error}", do="Write it as for a shell: --args './out 2'"
        ) from error


def _last_line(path: Path | None, source: Path, values: dict[str, str]) -> str:
    from llmsys_exp.importers.experiment import command

    if path is not None:
        return f"Wrote {path}. Look at it with: {command(path)}"
    return "Nothing is written: add -o NAME to keep it as an experiment."


def _as_json(experiment: Experiment, path: Path | None) -> dict[str, Any]:
    from llmsys_exp.importers.experiment import command

    plan = experiment.plan
    return {
        **experiment.imported.to_dict(),
        "overrides": experiment.overrides,
        "written": None if path is None else str(path),
        "command": None if path is None else command(path),
        "verdict": None if plan is None or plan.verdict is None else plan.verdict.to_dict(),
        "refusal": experiment.refusal or None,
    }
