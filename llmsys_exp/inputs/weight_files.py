"""What safetensors files of a model folder hold, read from their headers: no torch, no weight is loaded."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import file_hash

PATTERN = "*.safetensors"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_HEADER_BYTES = 100_000_000
SAMPLES, SAMPLE_BYTES = 16, 65_536


@dataclass(frozen=True)
class Stored:
    """One tensor in a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Return every tensor of the folder's safetensors files by name; empty where there is no such file.

    Raises:
        UserError: naming a file that is cut short or no safetensors file.
    """
    return {name: one for file in weight_files(folder) for name, one in _header(file)}


def check_weights(folder: Path) -> None:
    """Refuse a model folder whose safetensors files, as transformers reads them, are not all there and whole.

    Reads their headers only. A folder with none of them is left to transformers, which knows older formats.

    Raises:
        UserError: naming what is missing or cut short.
    """
    for file in files_to_load(folder):
        for _ in _header(file):
            pass


def files_to_load(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers reads of a folder; empty where it holds other formats.

    Raises:
        UserError: for an index that is broken or names files that are not there.
    """
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    index = folder / INDEX
    if not index.is_file():
        return []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "The index of the weight files is broken", where=str(index), do="Copy or download it again"
        ) from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        what = f"{len(missing)} of {len(names)} weight files are missing: {shown}"
        raise UserError(what, where=str(folder), do="Copy or download them again")
    return [folder / name for name in names]


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder."""
    return sorted(folder.glob(PATTERN))


def fingerprint(folder: Path) -> str | None:
    """Hash names, shapes and samples of the weights, however they are cut into files; None without weights.

    Reads a megabyte at most. Two models of one shape differ in it, unless they differ in a few weights only.
    """
    tensors = stored_tensors(folder)
    if not tensors:
        return None
    digest = hashlib.sha256()
    names = sorted(tensors)
    for name in names:
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
    for name in names[:: max(1, len(names) // SAMPLES)]:
        one = tensors[name]
        with one.file.open("rb") as stream:
            stream.seek(one.start + (one.nbytes // 2 if one.nbytes > 2 * SAMPLE_BYTES else 0))
            digest.update(stream.read(min(one.nbytes, SAMPLE_BYTES)))
    return digest.hexdigest()


def sha256_of_files(folder: Path) -> dict[str, str]:
    """Hash every weight file of a folder."""
    return {file.name: file_hash(file) for file in weight_files(folder)}


def _header(file: Path) -> Iterator[tuple[str, Stored]]:
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size, LARGEST_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header: dict[str, Any] = json.loads(stream.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            if end > size:
                raise ValueError(f"it ends before {name} does")
            yield name, Stored(file, entry["dtype"], tuple(entry["shape"]), start, end - start)
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise UserError(
            "The weight file is broken", where=str(file), why=str(error), do="Copy or download it again"
        ) from error
