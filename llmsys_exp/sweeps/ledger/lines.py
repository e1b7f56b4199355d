"""Lines of a ledger: one JSON object each, with a checksum, so that a torn or changed one is known."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

_END = re.compile(rb',"sum":"([0-9a-f]{8})"\}\Z')


def encode(entry: Mapping[str, Any]) -> bytes:
    r"""Return an entry as a line; its checksum is over the line as it would be without one.

    >>> encode({"v": 1, "point": 3})
    b'{"v":1,"point":3,"sum":"d594c7ed"}\n'
    """
    body = json.dumps(entry, separators=(",", ":"), default=str).encode()
    return body[:-1] + b',"sum":"%08x"}\n' % zlib.crc32(body)


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a line without its end, or None where it is not as it was written."""
    end = _END.search(line)
    if end is None:
        return None
    body = line[: end.start()] + b"}"
    if zlib.crc32(body) != int(end[1], 16):
        return None
    try:
        entry = json.loads(body)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
