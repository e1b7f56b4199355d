"""Weight files of a model folder, written while the weights come: no more than one file's worth is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.inputs.weight_files import INDEX, WHOLE
from llmsys_exp.runs.files import is_full
from llmsys_exp.workers.files import write_json

GB = 1_000_000_000
DISK_FULL = ("No space left", "StorageFull", "Disk quota exceeded", "File too large")

Weights = dict[str, Any]


@dataclass
class ShardWriter:
    """Takes weights one by one and writes them into files of at most `shard_bytes`.

    A weight that is larger than that gets a file of its own, as transformers does it.
    """

    folder: Path
    shard_bytes: int
    convert: Callable[[Weights], Weights] = lambda weights: weights
    """Renames and splits weights into the form that is stored; sees the weights of one file at a time."""
    total_bytes: int = 0
    parameters: int = 0
    _held: Weights = field(default_factory=dict)
    _held_bytes: int = 0
    _files: list[list[str]] = field(default_factory=list)

    def add(self, name: str, weight: Any) -> None:
        """Take a weight that lies in main memory; it is let go once its file is written."""
        size = weight.numel() * weight.element_size()
        if self._held and self._held_bytes + size > self.shard_bytes:
            self._flush()
        self._held[name] = weight
        self._held_bytes += size
        self.total_bytes += size
        self.parameters += weight.numel()

    def close(self) -> list[str]:
        """Write what is left, give the files their names, write the index; return the names."""
        if self._held:
            self._flush()
        count = len(self._files)
        names = [shard_name(number, count) for number in range(1, count + 1)]
        for number, name in enumerate(names, start=1):
            self._part(number).rename(self.folder / name)
        if count > 1:
            places = {one: name for name, held in zip(names, self._files, strict=True) for one in held}
            about = {"total_parameters": self.parameters, "total_size": self.total_bytes}
            write_json(self.folder / INDEX, {"metadata": about, "weight_map": dict(sorted(places.items()))})
        return names

    def _flush(self) -> None:
        from safetensors.torch import save_file

        stored = {name: one.contiguous() for name, one in self.convert(self._held).items()}
        self._files.append(list(stored))
        save_file(stored, self._part(len(self._files)), metadata={"format": "pt"})
        self._held, self._held_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:05}.safetensors"


def shard_name(number: int, count: int) -> str:
    """Return the name that transformers looks for.

    >>> shard_name(1, 1), shard_name(2, 3)
    ('model.safetensors', 'model-00002-of-00003.safetensors')
    """
    return WHOLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"


@contextmanager
def told_when_full(folder: Path) -> Iterator[None]:
    """Turn a full disk into a message; safetensors wraps the system's error into one of its own."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        if not is_full(error) and not any(one in str(error) for one in DISK_FULL):
            raise
        raise UserError(
            "The disk is full: the model was not written",
            where=str(folder),
            why="Nothing half-written is left there; what lay there before is as it was",
            do="Free some space and run the step again",
        ) from error
