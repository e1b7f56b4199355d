"""`llmsys export RUN_FOLDER`: write the model of a run as a plain folder, quantised if asked to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.cli.options import split_options, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console

_HELP = """llmsys export - write the model of a finished run as a plain folder

Usage:  llmsys export RUN_FOLDER [KEY=VALUE ...] [--json]

  RUN_FOLDER/merged      adapters merged into the base, in files of at most export.shard_gb
  RUN_FOLDER/consolidated/step-N   fp32 weights of a checkpoint, with checkpoint=last, best or a step
  RUN_FOLDER/quantized   the same, quantised with GPTQ, where a setting below export.gptq is given

Examples:
  llmsys export outputs/default/2026-11-29_12-00-00-abcdef
  llmsys export RUN_FOLDER export.shard_gb=2
  llmsys export RUN_FOLDER export.gptq.bits=4 export.gptq.calibration=rows.jsonl
"""


def run(arguments: Sequence[str]) -> int:
    """Export one run."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    flags = [text for text in rest if text.startswith("-")]
    if flags:
        raise unknown_argument(flags[0], ["--json", "--help"], where="llmsys export")
    folders = [text for text in rest if "=" not in text or Path(text).is_dir()]
    overrides = [text for text in rest if text not in folders]
    if len(folders) != 1:
        raise UserError("export takes one run folder", do="llmsys runs lists them")
    asked = [text.removeprefix("checkpoint=") for text in overrides if text.startswith("checkpoint=")]
    if asked:
        return _checkpoint(Path(folders[0]), asked, overrides, as_json=options.json)
    result = _export(Path(folders[0]), overrides, Console.on(sys.stderr if options.json else sys.stdout))
    if options.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return EXIT_OK


def _checkpoint(folder: Path, asked: Sequence[str], overrides: Sequence[str], *, as_json: bool) -> int:
    from llmsys_exp.jobs.consolidate import export_checkpoint

    if len(overrides) != 1:
        raise UserError("checkpoint=... stands alone", where="llmsys export", do="Leave out other settings")
    console = Console.on(sys.stderr if as_json else sys.stdout)
    result = export_checkpoint(folder, asked[0], console)
    console.line(f"Weights in fp32: {result['folder']}")
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return EXIT_OK


def _export(folder: Path, overrides: Sequence[str], console: Console) -> dict[str, object]:
    from llmsys_exp.jobs.export_run import export_run

    results = export_run(folder, overrides, console)
    found: dict[str, object] = {**results.get("export", {}), "folder": str(folder.absolute() / "merged")}
    if "export" in results:
        console.line(f"Model: {folder / 'merged'}")
    if "quantize" in results:
        found |= {"quantized_folder": str(folder.absolute() / "quantized"), "quantize": results["quantize"]}
        console.line(f"Quantised model: {folder / 'quantized'}")
    return found
