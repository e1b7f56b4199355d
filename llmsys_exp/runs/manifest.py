"""What manifest.json and start.json hold: the keys in their order, and the hash over them that comes last.

docs/records.md says what each key means; `runs.migrate` reads files of every version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

SCHEMA_VERSION = 2
SEAL = "sha256"

EMPTY: Mapping[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "id": "",
    "reproduces": "",
    "started": None,
    "finished": None,
    "command": [],
    "overrides": [],
    "groups": {},
    "name": "",
    "seeds": {},
    "config": {},
    "inputs": {},
    "choices": [],
    "forecast": None,
    "verdict": None,
    "serving": None,
    "environment": {},
    "machine": {},
    "code": None,
    "model": {},
    "data": {},
    "measured": {"peak_bytes": None, "rows": []},
    "metrics": {},
    "results": {},
    "records": {},
    "attempts": [],
    "timing_s": {},
    "tokens": {},
    "energy_wh": None,
    "energy": None,
    "starts": [],
    "later": [],
    "notes": [],
}
"""Every key in the order of the file with what it is where nothing is known; the seal follows."""


def utc_now() -> str:
    """Return the time in ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole content in order, as JSON will give it back, with the hash over it last.

    Raises:
        KeyError: for a key that the schema does not know.
    """
    unknown = set(content) - set(EMPTY) - {SEAL}
    if unknown:
        raise KeyError(f"not in the schema: {', '.join(sorted(unknown))}")
    ordered = {key: content.get(key, default) for key, default in EMPTY.items()}
    plain: dict[str, Any] = json.loads(json.dumps(ordered, default=str))
    return {**plain, SEAL: content_hash(plain)}


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 over everything but the seal, whatever the order of keys and the white space."""
    told = {key: value for key, value in content.items() if key != SEAL}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def is_edited(content: Mapping[str, Any]) -> bool | None:
    """Whether somebody changed the content since it was written; None where no hash tells (version 1)."""
    seal = content.get(SEAL)
    return None if not isinstance(seal, str) else seal != content_hash(content)
