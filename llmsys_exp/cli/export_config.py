"""`llmsys export-config`: write a planned configuration for another tool, and say what it has no word for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmsys_exp.cli.options import split_options, take_values, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console

if TYPE_CHECKING:
    from llmsys_exp.importers.writers.exported import Exported

FLAGS = ("--to", "-o", "--lossy", "--force", "--json", "--help")
_HELP = """llmsys export-config - write a configuration for another tool

Usage:  llmsys export-config EXPERIMENT [KEY=VALUE ...] --to FORMAT [-o FILE] [--lossy] [--force] [--json]

  --to {formats}

EXPERIMENT is a name, a path to a YAML file, or left out. The configuration is composed and planned first, so
that nothing says auto. What changes what is learnt and has no counterpart is refused, but with --lossy.
Without -o the main file is shown, and nothing is written.

Examples:
  llmsys export-config sft_lora --to llamafactory -o sft_lora.yaml
  llmsys export-config model=qwen2_5_7b method=full hardware=h100 --to ds -o ds_config.json
  llmsys export-config deepspeed_chat_16gb --to sh
"""


def run(arguments: Sequence[str]) -> int:
    """Export one configuration."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_help())
        return EXIT_OK
    values, rest = take_values(rest, {"--to": "FORMAT", "-o": "FILE"})
    switches = {flag for flag in ("--lossy", "--force") if flag in rest}
    rest = [text for text in rest if text not in switches]
    for text in rest:
        if text.startswith("-"):
            raise unknown_argument(text.partition("=")[0], FLAGS, where="llmsys export-config")
    return _export(_overrides(rest), values, switches, as_json=options.json)


def _help() -> str:
    from llmsys_exp.importers.writers import WRITERS

    width = max(map(len, WRITERS))
    formats = "\n       ".join(f"{name.ljust(width)}  {title}" for name, (title, _) in WRITERS.items())
    return _HELP.format(formats=formats)


def _overrides(rest: Sequence[str]) -> list[str]:
    """A word alone names an experiment."""
    names = [text for text in rest if "=" not in text]
    if len(names) > 1:
        raise UserError(f"export-config takes one experiment, and here are {len(names)}: {', '.join(names)}")
    return [*(f"experiment={name}" for name in names), *(text for text in rest if "=" in text)]


def _export(overrides: Sequence[str], values: Mapping[str, str], switches: set[str], *, as_json: bool) -> int:
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.importers.writers import WRITERS, export
    from llmsys_exp.plan.resolve import settle

    if "--to" not in values:
        raise UserError("--to is missing", do=f"Give --to {' | '.join(WRITERS)}")
    config = settle(compose_config(overrides)).config
    ending = WRITERS.get(values["--to"], ("", ""))[1]
    path = Path(values.get("-o", f"{config.name}{ending}")).expanduser().absolute()
    exported = export(config, values["--to"], path)
    if exported.lost and "--lossy" not in switches:
        raise _lossy(exported, values["--to"])
    if "-o" in values:
        _write(exported.files, force="--force" in switches)
    if as_json:
        texts = {str(file): text for file, text in exported.files.items()}
        content = {**exported.to_dict(), "texts": texts, "written": "-o" in values}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return EXIT_OK
    _show(exported, written="-o" in values)
    return EXIT_OK


def _lossy(exported: Exported, to: str) -> UserError:
    from llmsys_exp.importers.text import shown

    lines = [f"\n  {one.key}={shown(one.value)}: {one.why}. {one.do}".rstrip(". ") for one in exported.lost]
    count = "One setting changes" if len(lines) == 1 else f"{len(lines)} settings change"
    return UserError(
        f"{count} what is learnt and cannot be said to {to}:{'.'.join(lines)}",
        do="Change them, or add --lossy to write it all the same",
    )


def _write(files: Mapping[Path, str], *, force: bool) -> None:
    """Write all or, where one is in the way, none."""
    from llmsys_exp.config.experiment_file import check_free
    from llmsys_exp.runs.files import publish

    for path in files:
        check_free(path, force=force)
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            publish(path, text.encode(), overwrite=force)
        except OSError as error:
            raise UserError(f"Cannot write {path}: {error.strerror or error}") from error


def _show(exported: Exported, *, written: bool) -> None:
    from llmsys_exp.importers.text import show_export

    console = Console.on(sys.stderr if not written else sys.stdout)
    if not written:
        main, *others = exported.files.items()
        sys.stdout.write(main[1])
        sys.stdout.flush()
        for path, _ in others:
            console.line(f"Beside it: {path.name} (written with -o FILE)")
    show_export(console, exported)
    if written:
        for path in exported.files:
            console.line(f"Wrote {path}")
        if exported.command:
            console.line(f"Start it with: {exported.command}")
