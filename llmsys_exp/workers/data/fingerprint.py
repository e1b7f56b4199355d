"""Hashes that say whether two runs learnt from the same data, template and tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.runs.files import file_blocks


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def hash_sources(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or of all names and files in folders."""
    digest = hashlib.sha256()
    for path in paths:
        for file in _files(path):
            if path.is_dir():
                digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
            for block in file_blocks(file):
                digest.update(block)
    return digest.hexdigest()


def hash_tokenizer(tokenizer: Any) -> str:
    """Return the SHA-256 of what turns text into ids: vocabulary, rules and special tokens."""
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        rules = backend.to_str()
    else:
        rules = json.dumps(sorted(tokenizer.get_vocab().items()))
    # which token pads has no say: padding is never learnt
    named = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name != "pad_token"}
    return hash_text(json.dumps([type(tokenizer).__name__, rules, sorted(named.items())]))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    # what `datasets` and others leave behind is not the data
    found = (one for one in path.rglob("*") if one.is_file())
    yield from sorted(one for one in found if not one.name.startswith((".", "cache-")))
