"""`llmsys calibrate`: measure what this machine does beside the planner's constants, and let plans use it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from llmsys_exp.calibrate.apply import leave_aside
from llmsys_exp.calibrate.device import Device, devices_here
from llmsys_exp.calibrate.entry import Entry
from llmsys_exp.calibrate.measure import Found, read_runs
from llmsys_exp.calibrate.shown import show_entry, show_left_out, to_dict
from llmsys_exp.calibrate.store import calibration_file, read_entries, remove_entries, save_entry
from llmsys_exp.cli.options import Options, split_options, take_values, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console

_HELP = """llmsys calibrate - measure this machine, so that later plans count with it

Usage
  llmsys calibrate                        what is known of this machine, beside the planner's constants
  llmsys calibrate --from RUN ...         from runs that are there: folders, ids, outputs as a whole
  llmsys calibrate --measure [KEY=VALUE]  from 3 short jobs on a GPU (5 where there are two): 1 to 3 minutes
  llmsys calibrate --remove               forget it

  --dry-run           with --from: show what it comes to, and keep nothing
  --outputs FOLDER    where ids are looked up, and where runs of --measure go (outputs)
  --json              machine-readable result

Measured are GPU memory outside the allocator (context, libraries, NCCL) and seconds of a step against their
forecast; what the allocator holds is never touched. Kept by GPU and driver in ~/.config/llmsys (or
XDG_CONFIG_HOME); used by plan, train, recommend and sweep, which say so. Without it: --no-calibration, or
LLMSYS_CALIBRATION=off.
"""
ACTIONS = ("--from", "--measure", "--remove", "--show")


def run(arguments: Sequence[str]) -> int:
    """Show, measure, read or remove."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    leave_aside()
    values, rest = take_values(rest, {"--outputs": "FOLDER"})
    outputs = Path(values.get("--outputs", "outputs"))
    is_dry, rest = "--dry-run" in rest, [text for text in rest if text != "--dry-run"]
    asked = [text for text in rest if text in ACTIONS]
    rest = [text for text in rest if text not in ACTIONS]
    _check(asked, rest, is_dry)
    action = asked[0] if asked else "--show"
    console = Console.on(sys.stderr if options.json else sys.stdout)
    if action == "--remove":
        return _remove(options, console)
    if action == "--show":
        return _show(options, console)
    if action == "--measure":
        files = _measured(outputs, rest, console)
    else:
        from llmsys_exp.cli.calibrate_runs import manifests

        files = manifests(rest or [str(outputs)], outputs)
    return _keep(read_runs(files, _today()), options, console, is_dry=is_dry)


def _check(asked: Sequence[str], rest: Sequence[str], is_dry: bool) -> None:
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} do not go together", where="llmsys calibrate")
    action = asked[0] if asked else "--show"
    valid = [*ACTIONS, "--dry-run", "--outputs", "--json", "--help"]
    for text in rest:
        if text.startswith("-") or action in ("--show", "--remove"):
            raise unknown_argument(text, valid, where="llmsys calibrate")
        if action == "--measure" and "=" not in text:
            raise UserError(f"{text} is no setting", where="llmsys calibrate --measure", do="Write KEY=VALUE")
    if is_dry and action != "--from":
        raise UserError("--dry-run goes with --from", where="llmsys calibrate")


def _measured(outputs: Path, more: Sequence[str], console: Console) -> list[Path]:
    from llmsys_exp.calibrate.jobs import commands, gpu_here, gpus_to_use, run_jobs

    device = gpu_here()
    jobs = commands(device, gpus_to_use(dict(os.environ)), outputs, more)
    return run_jobs(jobs, outputs, console)


def _keep(found: Found, options: Options, console: Console, *, is_dry: bool) -> int:
    """Show what runs came to, and keep what is of this machine."""
    file = calibration_file()
    here = set(devices_here())
    kept = {device: entry for device, entry in found.entries.items() if _is_kept(device, entry, here)}
    _check_found(found)
    if not is_dry:
        for device, entry in kept.items():
            save_entry(file, device.key, entry)
    if options.json:
        content = {
            "file": str(file),
            "kept": [] if is_dry else [device.key for device in kept],
            "devices": to_dict({device.key: entry for device, entry in found.entries.items()}),
            "left_out": [{"run": run, "reason": reason} for run, reason in found.left_out],
            "no_speed": [{"run": run, "reason": reason} for run, reason in found.no_speed],
        }
        _write(content)
        return EXIT_OK
    for device, entry in found.entries.items():
        show_entry(console, device.key, entry, note=_note(device, entry, kept, here))
    show_left_out(console, found.left_out, "Runs that do not count")
    show_left_out(console, found.no_speed, "Runs whose speed does not count")
    console.line()
    what = (
        "Nothing is kept: --dry-run." if is_dry else f"Kept in {_home(file)}." if kept else "Nothing is kept."
    )
    console.line(what)
    return EXIT_OK


def _check_found(found: Found) -> None:
    if found.entries:
        return
    reasons = dict.fromkeys(reason for _, reason in found.left_out)
    raise UserError(
        "None of these runs tells anything of a machine",
        where=f"{len(found.left_out)} runs",
        why="; ".join(list(reasons)[:3]),
        do="Train something first, or on a GPU: llmsys calibrate --measure",
    )


def _is_kept(device: Device, entry: Entry, here: set[Device]) -> bool:
    return bool(device in here and device.kind and (entry.constants or entry.speed))


def _note(device: Device, entry: Entry, kept: dict[Device, Entry], here: set[Device]) -> str:
    if device in kept:
        return ""
    if device not in here:
        return "Not of this machine: shown, not kept."
    if not device.kind:
        return "The planner has no row for it, so nothing is kept."
    return "Nothing was measured that plans use." if not entry.constants and not entry.speed else ""


def _show(options: Options, console: Console) -> int:
    file = calibration_file()
    entries, here = read_entries(file), {device.key: device for device in devices_here()}
    if options.json:
        _write({"file": str(file), "here": list(here), "devices": to_dict(entries)})
        return EXIT_OK
    for key, entry in entries.items():
        note = "" if key in here else "Not of this machine, or of another driver: not used."
        show_entry(console, key, entry, note=note)
    console.line()
    missing = [device.key for key, device in here.items() if key not in entries]
    for key in missing:
        console.line(f"Nothing is known of {key}.")
    if missing:
        console.line("llmsys calibrate --from outputs reads past runs; --measure runs short jobs on a GPU.")
    return EXIT_OK


def _remove(options: Options, console: Console) -> int:
    file = calibration_file()
    gone = remove_entries(file)
    if options.json:
        _write({"file": str(file), "removed": gone})
    else:
        console.line(f"Removed: {'; '.join(gone)}" if gone else f"There was nothing in {_home(file)}")
    return EXIT_OK


def _write(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def _today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def _home(file: Path) -> str:
    try:
        return f"~/{file.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(file)
