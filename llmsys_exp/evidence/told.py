"""What the results of workers tell of data and tokens, in the words of the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARTS = ("train", "heldout")
CHOSEN = ("part", "limit", "share", "seed", "subset", "split")


def data_told(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what workers told of the data: rows of each part, the template, which rows were set aside."""
    told = (results.get("train") or {}).get("data")
    told = told if isinstance(told, dict) else {}
    parts = {name: told[name] for name in PARTS if isinstance(told.get(name), dict)}
    rows = {name: part.get("rows") for name, part in parts.items()}
    if "prompts" in (results.get("infer") or {}):
        rows["prompts"] = results["infer"]["prompts"]
    return {
        "files": {
            name: {"path": part.get("source"), "sha256": part["sha256"], "bytes": None}
            for name, part in parts.items()
            if "sha256" in part
        },
        "rows": rows,
        "template_sha256": told.get("template_sha256"),
        "tokenizer_sha256": told.get("tokenizer_sha256"),
        "split": {name: {key: part[key] for key in CHOSEN if key in part} for name, part in parts.items()},
        "fingerprint": told or None,
    }


def tokens_of(results: Mapping[str, Any]) -> dict[str, int]:
    """Return how many tokens each step went through."""
    train, infer = results.get("train") or {}, results.get("infer") or {}
    found = {
        "trained": train.get("tokens"),
        "prompts": infer.get("prompt_tokens"),
        "answers": infer.get("new_tokens"),
    }
    return {name: count for name, count in found.items() if isinstance(count, int)}
