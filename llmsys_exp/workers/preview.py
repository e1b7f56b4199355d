"""Show what a job would learn: its first examples as tokens, and how long examples are.

python -m llmsys_exp.workers.preview RUN_FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmsys_exp.workers.data.example import Example
from llmsys_exp.workers.data.load import Loaded, load_examples
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job, folder_argument, load_job
from llmsys_exp.workers.models.tokenizer import load_tokenizer
from llmsys_exp.workers.ranks import quieten

SHOWN_EXAMPLES = 3
PERCENTILES = {"shortest": 0, "p50": 50, "p90": 90, "p99": 99, "longest": 100}
CONTEXT_TOKENS = 6
"""Tokens decoded before one, so that its blanks and the bytes of its letters come out right."""
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def preview(job: Job) -> dict[str, Any]:
    """Return the first examples token by token, counts, and percentiles of lengths."""
    tokenizer = load_tokenizer(job)
    data = load_examples(job, tokenizer)
    sequences = data.train
    return {
        "examples": [
            _example(tokenizer, sequences[number]) for number in range(min(SHOWN_EXAMPLES, len(sequences)))
        ],
        "counts": _counts(data),
        "lengths": {
            "tokens": _percentiles(sequences.lengths),
            "learnt": _percentiles([one.label_count for one in sequences]),
        },
        "notes": data.notes,
        "fingerprint": data.fingerprint,
    }


def _counts(data: Loaded) -> dict[str, int]:
    told = data.fingerprint
    learnt = int(data.train.learnt_counts.sum())
    return {
        "rows": told["train"]["rows"],
        "examples": told["train"]["examples"],
        "sequences": told["sequences"],
        "heldout": len(data.heldout),
        "tokens": told["tokens"],
        "learnt": learnt,
    }


def _percentiles(values: Sequence[int]) -> dict[str, int]:
    return {name: int(np.percentile(values, share, method="nearest")) for name, share in PERCENTILES.items()}


def _example(tokenizer: Any, example: Example) -> dict[str, Any]:
    ids = example.ids.tolist()
    return {
        "ids": ids,
        "texts": token_texts(tokenizer, ids),
        "learnt": example.learnt.tolist(),
        "lengths": list(example.lengths) or [len(ids)],
    }


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return each token's share of the whole text; empty for the first bytes of a letter."""
    found = []
    for at in range(len(ids)):
        context = ids[max(0, at - CONTEXT_TOKENS) : at]
        before = tokenizer.decode(context).removesuffix("\N{REPLACEMENT CHARACTER}") if context else ""
        found.append(
            tokenizer.decode([*context, ids[at]]).removeprefix(before).rstrip("\N{REPLACEMENT CHARACTER}")
        )
    return found


def main() -> None:
    """Entry point."""
    job = load_job(folder_argument(sys.argv[1:], worker="preview"))
    quieten()
    write_json(job.paths.result("preview"), preview(job))


if __name__ == "__main__":
    run_and_exit(main)
