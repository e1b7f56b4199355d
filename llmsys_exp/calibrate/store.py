"""The file that calibrations are kept in: one for each user, an entry a device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from llmsys_exp.calibrate.entry import Entry, read_entry
from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import publish

SCHEMA_VERSION = 1
LARGEST_BYTES = 1 << 20


def calibration_file() -> Path:
    """Return where the calibrations of this user are, whether there are any or not.

    Raises:
        UserError: for a user without a home.
    """
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError as error:
        raise UserError("This user has no home", why=str(error), do="Set XDG_CONFIG_HOME") from error
    return folder / "llmsys" / "calibration.json"


def read_entries(file: Path) -> dict[str, Entry]:
    """Return the entries of the file by device; none where there is no file.

    Raises:
        UserError: when it cannot be read, or holds what nobody can have measured.
    """
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise ValueError("it is too large")
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("devices"), dict):
            raise ValueError("it holds no devices")
        version = content.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version!r}, and this llmsys reads {SCHEMA_VERSION}")
        return {str(key): read_entry(one) for key, one in content["devices"].items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            "The calibration of this machine cannot be read",
            where=str(file),
            why=str(getattr(error, "strerror", None) or error),
            do="Remove it: llmsys calibrate --remove; or plan without it: LLMSYS_CALIBRATION=off",
        ) from error


def save_entry(file: Path, key: str, entry: Entry) -> None:
    """Keep an entry, in the place of one of the same device.

    Raises:
        UserError: when the file that is there cannot be read, or the disk refuses.
    """
    _write(file, {**read_entries(file), key: entry})


def remove_entries(file: Path) -> list[str]:
    """Remove the file and return what it held; one that cannot be read goes, too.

    Raises:
        UserError: when the disk refuses.
    """
    try:
        gone = list(read_entries(file))
    except UserError:
        gone = [f"{file}, which could not be read"]
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(file, error) from error
    return gone


def _write(file: Path, entries: Mapping[str, Entry]) -> None:
    content = {
        "schema_version": SCHEMA_VERSION,
        "devices": {key: entry.to_dict() for key, entry in entries.items()},
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        publish(file, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise _refused(file, error) from error


def _refused(file: Path, error: OSError) -> UserError:
    why = error.strerror or str(error)
    return UserError("The calibration cannot be kept", where=str(file), why=why, do="Set XDG_CONFIG_HOME")
