"""The JSON of a `trainer_state.json`, which is one object and so has a size that is still read whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError

MOST_BYTES = 64 << 20


def read_state(file: Path) -> dict[str, Any]:
    """Return the object of the file.

    Raises:
        UserError: when it is too large, broken or something else.
    """
    try:
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise UserError(
                f"The file has {size >> 20:,} MiB", where=str(file), why=f"At most {MOST_BYTES >> 20} "
                    "MiB are read whole",
                do="Give trainer_log.jsonl, which is read line by line",
            )  # fmt: skip
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            "The file is not JSON, or was cut short", where=str(file), why=str(error)[:200]
        ) from error
    if not isinstance(found, dict):
        raise UserError("The file holds no object", where=str(file), do="Give a trainer_state.json")
    return found
