"""Write files so that a reader never sees half of one, and say plainly when the disk refuses."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError

BLOCK_BYTES = 1 << 22


def file_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in blocks, so that a large one is never held whole."""
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            yield block


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a file under another name, then rename it."""
    partial = path.with_name(f"{path.name}.partial")
    with disk_errors(path):
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)


def partial_of(path: Path) -> Path:
    """The name that this process writes a file under until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def publish(path: Path, data: bytes, *, overwrite: bool = True) -> None:
    """Write a file under another name, then give it its own; leave nothing behind when the disk refuses.

    Raises:
        FileExistsError: without `overwrite`, when the file is there by then.
        OSError: when the disk refuses; a file that was there is untouched.
    """
    partial = partial_of(path)
    try:
        with partial.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if overwrite:
            partial.replace(path)
        else:
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON, keys in the order given, under another name, then rename it."""
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    """Return JSON as it is written to files."""
    return json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None when it is absent or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file; a last line cut short by a crash is left out."""
    rows: list[dict[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a refusal of the file system into a UserError."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error, path) from error


def is_full(error: BaseException | None) -> bool:
    """Whether a file system refused for want of room: disk, quota or the limit of one file."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_write(error: OSError, path: Path | str) -> UserError:
    """Say what the file system refused."""
    return UserError(
        f"Cannot write: {error.strerror or error}",
        where=str(error.filename or path),
        do="Free some space or choose another place with paths.outputs=FOLDER",
    )
